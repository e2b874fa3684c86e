// OpenAI's package for JavaScript: a streamed chat and a streamed response.
import OpenAI from "openai";

const url = process.env.EDGEDEC_URL ?? "http://127.0.0.1:8080";
const model = process.env.EDGEDEC_MODEL ?? "nano";
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });

const chunks = await client.chat.completions.create({
  model,
  messages: [{ role: "user", content: "Tell me a story." }],
  max_tokens: 30,
  seed: 1,
  stream: true,
});
let chat = "";
for await (const chunk of chunks) chat += chunk.choices[0]?.delta?.content ?? "";
console.log("chat:", chat);

let response = "";
const events = await client.responses.create({ model, input: "Once upon a time", max_output_tokens: 20, stream: true });
for await (const event of events) if (event.type === "response.output_text.delta") response += event.delta;
console.log("response:", response);
