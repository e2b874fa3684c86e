// A story in node: node examples/js/story.mjs BUNDLE "Once upon a time"
// (runtimes/web needs its modules: python kernels/wasm/build.py --out runtimes/web)
import { open } from "../../runtimes/web/edgedec.js";

const [bundle, prompt = "Once upon a time"] = process.argv.slice(2);
const session = (await open(bundle)).session();
process.stdout.write(prompt);
for await (const token of session.generate(prompt, { maxTokens: 150 })) process.stdout.write(token.text);
process.stdout.write("\n");
