package org.edgedec.engine

import java.io.File
import java.security.SecureRandom
import org.edgedec.CancelledException
import org.edgedec.ContextFullException
import org.edgedec.Drafts
import org.edgedec.Finish
import org.edgedec.GenerateOptions
import org.edgedec.SessionException
import org.edgedec.Stats
import org.edgedec.UsageException
import org.edgedec.decoding.CopyDraft
import org.edgedec.decoding.Pcg64
import org.edgedec.decoding.Sampler

/**
 * A text on ONNX Runtime: prefill in pieces, then token by token or, with drafts, a chain of drafted tokens a call, of which
 * those that the model itself would have chosen stay. Lossless up to the rounding of ONNX Runtime's products, which differs
 * for one row and for many (docs/exactness.md).
 */
internal class OrtText(private val model: OrtModel, override val capacity: Int, private val drafts: Drafts) : EngineText {
    private val ids = ArrayList<Int>()
    private val forward = OrtForward(model)
    private var cached = 0
    private var prompt = 0
    private var random = Pcg64(SecureRandom().nextLong() ushr 1)

    @Volatile
    private var cancelled = false

    override val length: Int get() = ids.size

    override fun tokens(): IntArray = ids.toIntArray()

    override fun generate(prompt: IntArray?, options: GenerateOptions, sink: TokenSink): Stats {
        cancelled = false
        if (prompt != null) read(prompt, options)
        if (ids.isEmpty()) throw UsageException("the prompt is empty; give at least one token")
        options.sampling.seed?.let { random = Pcg64(it) }
        return Run(options, sink).run()
    }

    private fun read(prompt: IntArray, options: GenerateOptions) {
        val vocab = model.bundle.manifest.vocabSize
        prompt.find { it !in 0 until vocab }?.let { throw UsageException("token $it: no such token; the vocabulary has $vocab") }
        val need = prompt.size + (options.maxTokens ?: 1)
        if (need > capacity) throw ContextFullException("${prompt.size} tokens and ${options.maxTokens ?: 1} more do not fit into a context of $capacity; shorten the prompt")
        val shared = ids.indices.takeWhile { it < prompt.size && ids[it] == prompt[it] }.size
        ids.subList(shared, ids.size).clear()
        for (i in shared until prompt.size) ids.add(prompt[i])
        cached = minOf(cached, shared)
        this.prompt = ids.size
    }

    override fun truncate(length: Int) {
        if (length !in 0..ids.size) throw UsageException("length $length: the text has ${ids.size} tokens")
        ids.subList(length, ids.size).clear()
        cached = minOf(cached, length)
    }

    override fun cancel() {
        cancelled = true
    }

    override fun fork(): EngineText = OrtText(model, capacity, drafts).also { twin ->
        twin.ids.addAll(ids)
        twin.prompt = prompt
        twin.random = Pcg64.restored(random.saved())
        if (twin.forward.restore(forward.saved(cached), cached, capacity)) twin.cached = cached
    }

    /** The tokens, the random state and the cache. */
    override fun save(file: File) =
        OrtSaved(model.bundle.origin, model.kv, ids.toIntArray(), prompt, random.saved(), cached, forward.saved(cached)).write(file)

    override fun load(file: File) {
        val saved = OrtSaved.read(file, model.bundle.origin, model.kv, capacity, model.bundle.manifest.vocabSize)
        if (!forward.restore(saved.cache, saved.cached, capacity)) throw SessionException("$file: damaged; start a new session")
        ids.clear()
        saved.ids.forEach { ids.add(it) }
        prompt = saved.prompt
        random = saved.random()
        cached = saved.cached
    }

    override fun close() = forward.close()

    /** One generation. */
    private inner class Run(private val options: GenerateOptions, private val sink: TokenSink) {
        private val sampler = Sampler(options.sampling)
        private val ends = options.stopTokens + if (options.ignoreEos) emptySet() else model.bundle.manifest.text.eos
        private val most = options.maxTokens ?: Int.MAX_VALUE
        private val begun = System.nanoTime()
        private val reused = cached
        private val given = ids.size
        private var first = 0L
        private var generated = 0
        private var calls = 0
        private var proposed = 0
        private var accepted = 0
        private var finish: Finish? = null

        fun run(): Stats {
            if (most == 0) return stats(Finish.LENGTH)
            prefill()
            while (finish == null) step()
            return stats(finish!!)
        }

        /** All of the text but its last token. */
        private fun prefill() {
            cached = minOf(cached, ids.size - 1)
            while (cached < ids.size - 1) {
                checkCancelled()
                val piece = minOf(CHUNK, ids.size - 1 - cached)
                forward(piece, 0, IntArray(0))
                if (!sink.prompt(cached, ids.size)) throw CancelledException("the generation was cancelled while its prompt was read")
            }
        }

        private fun step() {
            checkCancelled()
            val room = minOf(capacity - ids.size, most - generated - 1, DRAFT)
            val draft = if (drafts == Drafts.OFF || room < 1) IntArray(0) else CopyDraft.of(ids, room)
            proposed += draft.size
            val logits = forward(ids.size - cached, draft.size + 1, draft)
            var i = 0
            while (finish == null) {
                val token = choose(logits[i])
                val right = i < draft.size && draft[i] == token
                add(token, drafted = right)
                if (!right || finish != null) break
                cached++
                accepted++
                i++
            }
        }

        /** Runs the next `n` tokens of the text and a draft after them; the draft is not committed. */
        private fun forward(n: Int, wanted: Int, draft: IntArray): Array<FloatArray> {
            val rows = IntArray(n) { ids[cached + it] } + draft
            val logits = forward.run(rows, cached, wanted, capacity)
            calls++
            cached += n
            return logits
        }

        private fun choose(logits: FloatArray): Int {
            if (generated < options.minTokens) ends.forEach { if (it < logits.size) logits[it] = Float.NEGATIVE_INFINITY }
            return sampler.next(logits, ids, prompt, random::nextDouble)
        }

        private fun add(token: Int, drafted: Boolean) {
            if (first == 0L) first = System.nanoTime()
            if (token in ends) {
                finish = Finish.EOS
                return
            }
            ids.add(token)
            generated++
            val on = sink.accept(token, drafted)
            finish = when {
                !on -> Finish.STOPPED
                generated >= most -> Finish.LENGTH
                ids.size >= capacity -> Finish.CONTEXT
                else -> null
            }
        }

        private fun checkCancelled() {
            if (cancelled) throw CancelledException("the generation was cancelled")
        }

        private fun stats(finish: Finish): Stats {
            val now = System.nanoTime()
            fun seconds(until: Long) = ((if (until == 0L) now else until) - begun) / 1e9
            return Stats(finish, given, reused, generated, calls, proposed, accepted, seconds(first), seconds(now))
        }
    }

    private companion object {
        const val CHUNK = 256
        const val DRAFT = 6
    }
}
