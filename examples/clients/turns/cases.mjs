// What the scripts here share: the server, a function for the model to call, and cases that are run one after another.
export const url = process.env.EDGEDEC_URL ?? "http://127.0.0.1:8080";
export const model = process.env.EDGEDEC_MODEL ?? "nano";
export const [first, second] = ["Tell me a story.", "And then?"];
export const schema = {
  type: "object",
  properties: { animal: { type: "string", enum: ["cat", "dog"] } },
  required: ["animal"],
  additionalProperties: false,
};

export function assert(holds, what) {
  if (!holds) throw new Error(what);
}

export async function run(cases) {
  let failed = 0;
  for (const [name, act] of Object.entries(cases)) {
    try {
      await act();
      console.log(`${name}: ok`);
    } catch (error) {
      failed += 1;
      console.log(`${name}: failed`);
      console.error(name, error);
    }
  }
  process.exitCode = failed;
}
