// OpenAI's package for JavaScript: the second turn sends back what the first one answered.
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { assert, first, model, run, schema, second, url } from "./cases.mjs";

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const { completions } = client.chat;
const user = (content) => ({ role: "user", content });
const short = { model, max_tokens: 12, seed: 1 };
const long = { model, max_tokens: 100, seed: 1 };
const Animal = z.object({ animal: z.enum(["cat", "dog"]) });
const tool = { type: "function", function: { name: "find", parameters: schema } };
const results = (calls) => calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: "Tom" }));

await run({
  async chat() {
    const { message } = (await completions.create({ ...short, messages: [user(first)] })).choices[0];
    const again = await completions.create({ ...short, messages: [user(first), message, user(second)] });
    assert(again.choices[0].message.content, "no answer");
  },
  async stream() {
    const message = await completions.stream({ ...short, messages: [user(first)] }).finalMessage();
    const again = completions.stream({ ...short, messages: [user(first), message, user(second)] });
    assert(await again.finalContent(), "no answer");
  },
  async tools() {
    const asked = { ...long, tools: [tool], tool_choice: "required" };
    const { message } = (await completions.create({ ...asked, messages: [user(first)] })).choices[0];
    const messages = [user(first), message, ...results(message.tool_calls)];
    assert((await completions.create({ ...short, tools: [tool], messages })).choices.length, "no answer");
  },
  async parse() {
    const asked = { ...long, response_format: zodResponseFormat(Animal, "animal") };
    const { message } = (await completions.parse({ ...asked, messages: [user(first)] })).choices[0];
    assert(message.parsed.animal, "nothing parsed");
    const again = await completions.parse({ ...asked, messages: [user(first), message, user(second)] });
    assert(again.choices[0].message.parsed, "nothing parsed");
  },
  async parse_tools() {
    const asked = { ...long, tools: [zodFunction({ name: "find", parameters: Animal })], tool_choice: "required" };
    const { message } = (await completions.parse({ ...asked, messages: [user(first)] })).choices[0];
    assert(message.tool_calls[0].function.parsed_arguments.animal, "nothing parsed");
    const messages = [user(first), message, ...results(message.tool_calls)];
    assert((await completions.parse({ ...asked, messages })).choices.length, "no answer");
  },
  async run_tools() {
    let called = 0;
    const find = { name: "find", parameters: schema, parse: JSON.parse, function: () => `Tom ${(called += 1)}` };
    const asked = { ...long, tools: [{ type: "function", function: find }], tool_choice: "required" };
    const runner = completions.runTools({ ...asked, messages: [user(first)] }, { maxChatCompletions: 2 });
    await runner.done();
    assert(called > 0, "not called");
  },
  async response() {
    const asked = { model, max_output_tokens: 16 };
    const one = await client.responses.create({ ...asked, input: first });
    const again = await client.responses.create({ ...asked, input: [user(first), ...one.output, user(second)] });
    assert(again.output_text, "no answer");
    const next = await client.responses.create({ ...asked, input: second, previous_response_id: one.id });
    assert(next.output_text, "no answer");
  },
  async response_parse() {
    const asked = { model, max_output_tokens: 100, text: { format: zodTextFormat(Animal, "animal") } };
    const one = await client.responses.parse({ ...asked, input: first });
    assert(one.output_parsed.animal, "nothing parsed");
    const again = await client.responses.parse({ ...asked, input: [user(first), ...one.output, user(second)] });
    assert(again.output_parsed, "nothing parsed");
  },
  async response_tools() {
    const tools = [{ type: "function", name: "find", parameters: schema, strict: true }];
    const asked = { model, max_output_tokens: 100, tools, tool_choice: "required" };
    const one = await client.responses.parse({ ...asked, input: first });
    const calls = one.output.filter((item) => item.type === "function_call");
    const outputs = calls.map(({ call_id }) => ({ type: "function_call_output", call_id, output: "Tom" }));
    const again = await client.responses.create({ ...asked, input: [user(first), ...one.output, ...outputs] });
    assert(again.output.length, "no answer");
  },
});
