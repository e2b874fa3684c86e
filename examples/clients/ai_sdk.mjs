// Vercel's AI SDK: a streamed text and an object that follows a schema.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, streamText } from "ai";
import { z } from "zod";

const url = process.env.EDGEDEC_URL ?? "http://127.0.0.1:8080";
const edgedec = createOpenAICompatible({ name: "edgedec", baseURL: `${url}/v1`, supportsStructuredOutputs: true });
const model = edgedec(process.env.EDGEDEC_MODEL ?? "nano");

const { textStream } = streamText({ model, prompt: "Tell me a story.", maxOutputTokens: 30, seed: 1 });
let text = "";
for await (const part of textStream) text += part;
console.log("text:", text);

const schema = z.object({ animal: z.enum(["cat", "dog", "fox"]), age: z.number().int().min(0).max(20) });
const { object } = await generateObject({ model, schema, prompt: "Which animal?", seed: 1 });
console.log("object:", JSON.stringify(object));
