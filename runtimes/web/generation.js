// Generations, one forward call at a time, so that the page or program stays responsive between calls.
import { EdgedecError, readStruct, Scope, scoped } from "./memory.js";
import { constraintOf, generateOptions } from "./options.js";

const FINISH = ["", "eos", "stop", "length", "context", "stopped"];
const TURN = 12;  // milliseconds between yields to the event loop
let numbers = 0;

/** Yields to the event loop: messages, timers, input. */
const turn = typeof setImmediate === "function" ? () => new Promise(done => setImmediate(done)) : () => new Promise(done => {
  const channel = new MessageChannel();
  channel.port1.onmessage = () => { channel.port1.close(); done(undefined); };
  channel.port2.postMessage(0);
});

/** One running generation. */
export class Generation {
  /** @param {import("./edgedec.js").Request} request */
  constructor({ session: given, prompt, options = {} }) {
    const session = /** @type {any} */ (given), memory = /** @type {import("./memory.js").Memory} */ (session._memory);
    this.session = session, this.memory = memory, this.scope = new Scope(memory);
    this.tokens = /** @type {any[]} */ ([]);
    this.number = ++numbers, this.handle = 0, this.signal = options.signal;
    const running = session.model._running;
    running.set(this.number, this);
    try {
      const ids = typeof prompt === "string" ? session.model.encode(prompt) : prompt;
      const asked = generateOptions(this.scope, options, session.model.noText === "");
      this.result = this.scope.struct("result", null);
      this.handle = this.scope.made("running_new", session.handle, ids ? this.scope.i32(ids) : 0, ids?.length ?? 0, asked, this.result,
        this.number);
    } catch (error) {
      running.delete(this.number);
      this.scope.free();
      throw error;
    }
  }

  /** Receives a token from the engine; returns 0 to go on. @param {number} at */
  take(at) {
    const found = readStruct(this.memory, "token", at), top = [];
    for (let i = 0; i < found.n_top; i++)
      top.push([this.memory.view.getInt32(found.top_tokens + 4 * i, true), this.memory.view.getFloat64(found.top_logprobs + 8 * i, true)]);
    this.tokens.push({ id: found.id, text: this.memory.textAt(found.text, found.text_bytes), drafted: found.drafted !== 0,
      logprob: found.logprob, top });
    return 0;
  }

  get status() { return this.memory.run("running_status", this.handle); }

  /** The error that ended it, if one did. */
  get failure() {
    const status = this.status;
    if (status <= 0) return null;
    return this.memory.failure(status, this.memory.string(this.memory.call.running_message(this.handle)));
  }

  /** Ends it if it still runs; tokens that were not read are removed from the text. */
  free() {
    if (!this.handle) return;
    this.session.model._running.delete(this.number);
    if (!this.memory.dead) {
      this.memory.run("running_free", this.handle);
      const untaken = this.tokens.filter(token => token.id >= 0).length;
      if (untaken) this.session.truncate(this.memory.run("session_length", this.session.handle) - untaken);
      const found = this.scope.read("result", this.result);
      this.session.result = { finish: FINISH[found.finish] || "stopped", prompt: found.prompt, cached: found.cached,
        generated: found.generated - untaken, calls: found.calls, drafted: found.drafted, accepted: found.accepted,
        promptSeconds: found.prompt_seconds, seconds: found.seconds };
      this.scope.free();
    }
    this.handle = 0;
  }
}

/** One forward call of all that have not ended. @param {Generation[]} all */
function advance(all) {
  return scoped(all[0].memory, scope => {
    const list = scope.alloc(4 * all.length), live = scope.pointer();
    all.forEach((each, i) => scope.memory.view.setUint32(list + 4 * i, each.handle, true));
    scope.memory.check("running_advance", list, all.length, live);
    return scope.memory.view.getInt32(live, true);
  });
}

/** Generations of one model that share their forward calls: the tokens of each, as they come, with its number. Each has the
 * tokens that it has alone. The first failure ends all.
 * @param {import("./edgedec.js").Request[]} requests
 * @returns {AsyncGenerator<{index: number, token: import("./edgedec.js").Token}>} */
export async function* together(requests) {
  const all = /** @type {Generation[]} */ ([]);
  try {
    for (const { session, options } of requests) if (constraintOf(options ?? {})) await /** @type {any} */ (session.model)._constraints();
    for (const request of requests) all.push(new Generation(request));
    for (let live = all.length, since = performance.now(); ; ) {
      for (const [index, each] of all.entries())
        while (each.tokens.length) yield { index, token: each.tokens.shift() };
      for (const each of all) {
        if (each.failure) throw each.failure;
        if (each.signal?.aborted) throw new EdgedecError("cancelled", "cancelled");
      }
      if (!live) return;
      if (performance.now() - since > TURN) {
        await turn();
        since = performance.now();
      }
      live = advance(all);
    }
  } finally {
    for (const each of all) each.free();
  }
}
