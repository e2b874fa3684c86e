// Vercel's AI SDK: conversations that hold `response.messages`, by its three ways to such a server.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { assert, first, model, run, schema, second, url } from "./cases.mjs";

const compatible = createOpenAICompatible({ name: "edgedec", baseURL: `${url}/v1`, supportsStructuredOutputs: true });
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const models = { compatible: compatible(model), chat: openai.chat(model), responses: openai.responses(model) };
const user = (content) => ({ role: "user", content });
const find = tool({ inputSchema: jsonSchema(schema), execute: async () => "Tom" });
const ends = { maxRetries: 0, onError: ({ error }) => { throw error; } };

async function text(model) {
  const asked = { model, maxOutputTokens: 16, maxRetries: 0 };
  const { response } = await generateText({ ...asked, system: "Be kind.", messages: [user(first)] });
  const again = await generateText({ ...asked, messages: [user(first), ...response.messages, user(second)] });
  assert(again.text, "no answer");
}

async function stream(model) {
  const asked = { model, maxOutputTokens: 16, ...ends };
  const one = streamText({ ...asked, messages: [user(first)] });
  const { messages } = await one.response;
  const again = streamText({ ...asked, messages: [user(first), ...messages, user(second)] });
  assert(await again.text, "no answer");
}

async function tools(model) {
  const asked = { model, temperature: 0, maxOutputTokens: 300, maxRetries: 0, tools: { find } };
  const one = await generateText({ ...asked, toolChoice: "required", messages: [user(first)] });
  assert(one.toolCalls.length, "no call");
  const messages = [user(first), ...one.response.messages];
  await generateText({ ...asked, messages });
  // Several steps by itself, streamed.
  const steps = streamText({ ...asked, toolChoice: "required", stopWhen: stepCountIs(2), ...ends, prompt: first });
  assert((await steps.steps).length === 2, "no second step");
}

async function object(model) {
  const asked = { model, maxOutputTokens: 100, maxRetries: 0, output: Output.object({ schema: jsonSchema(schema) }) };
  const one = await generateText({ ...asked, messages: [user(first)] });
  assert(one.output.animal, "no object");
  const again = await generateText({ ...asked, messages: [user(first), ...one.response.messages, user(second)] });
  assert(again.output.animal, "no object");
}

async function both(model) {
  const output = Output.object({ schema: jsonSchema(schema) });
  const asked = { model, maxOutputTokens: 100, maxRetries: 0, output, tools: { find } };
  await generateText({ ...asked, messages: [user(first)] });
}

const cases = {};
for (const [name, model] of Object.entries(models))
  for (const act of [text, stream, tools, object, both]) cases[`${name}_${act.name}`] = () => act(model);
await run(cases);
