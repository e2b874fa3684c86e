package org.edgedec

import java.io.File
import java.util.concurrent.atomic.AtomicBoolean
import java.util.concurrent.atomic.AtomicInteger
import java.util.concurrent.locks.ReentrantLock
import kotlin.concurrent.withLock
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.channels.ProducerScope
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.buffer
import kotlinx.coroutines.flow.channelFlow
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.isActive
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import org.edgedec.decoding.StopStrings
import org.edgedec.engine.EngineText
import org.edgedec.engine.TokenSink
import org.edgedec.text.Detokenizer
import org.edgedec.text.Message

/** Takes tokens in Java; false ends the generation. */
fun interface TokenListener {
    fun onToken(token: Token): Boolean
}

/**
 * One text and its cache. One generation at a time; [cancel] may be called from any thread. A prompt is the
 * whole text: a common prefix with the text so far is not computed again.
 */
class Session internal constructor(val model: Model, private val text: EngineText) : AutoCloseable {
    private val lock = ReentrantLock()
    private val closed = AtomicBoolean()

    /** How the last generation went; null before the first has ended. */
    @Volatile
    var stats: Stats? = null
        private set

    val ids: IntArray get() = exclusively { text.tokens() }

    val length: Int get() = text.length

    val capacity: Int get() = text.capacity

    /**
     * The tokens that follow a prompt, computed on a background thread as they are collected. Leaving the flow early, or
     * cancelling its coroutine, ends the generation and leaves the session with the tokens that were collected.
     */
    @JvmOverloads
    fun generate(prompt: String?, options: GenerateOptions = GenerateOptions()): Flow<Token> = flow(options) { prompt?.let(model.tokenizer::encode) }

    /** Of tokens. */
    fun generateTokens(prompt: IntArray?, options: GenerateOptions = GenerateOptions()): Flow<Token> = flow(options) { prompt }

    /** The answer to a chat, through the model's template. */
    @JvmOverloads
    fun chat(messages: List<Message>, options: GenerateOptions = GenerateOptions()): Flow<Token> = flow(options) { model.chatTokens(messages) }

    /** For Java, and for threads without coroutines: returns when the generation has ended. */
    @JvmOverloads
    fun generateBlocking(prompt: String?, options: GenerateOptions = GenerateOptions(), listener: TokenListener): Stats =
        run(prompt?.let(model.tokenizer::encode), options, listener)

    private fun flow(options: GenerateOptions, prompt: () -> IntArray?): Flow<Token> = flow {
        val taken = AtomicInteger()
        val tokens = channelFlow { launch(Dispatchers.Default) { run(prompt(), options, Sender(this@channelFlow, taken)) } }
        tokens.buffer(Channel.RENDEZVOUS).collect { token ->
            if (token.id >= 0) taken.incrementAndGet()
            emit(token)
        }
    }

    /**
     * Sends to a flow until its collector is gone. [taken]: the number of tokens collected; a cancelled send
     * may have arrived.
     */
    private class Sender(private val scope: ProducerScope<Token>, private val taken: AtomicInteger) : TokenListener, Watch {
        // As a child of the flow's job: else its cancellation would not reach a send that waits.
        override fun onToken(token: Token): Boolean = try {
            runBlocking(scope.coroutineContext[Job]!!) { scope.send(token) }
            true
        } catch (e: CancellationException) {
            false
        }

        override val active: Boolean get() = scope.isActive

        override val count: Int get() = taken.get()
    }

    /** A listener that may go away: whether it is still there, and how many tokens it took. */
    private interface Watch {
        val active: Boolean
        val count: Int
    }

    private fun run(prompt: IntArray?, options: GenerateOptions, listener: TokenListener): Stats = exclusively {
        val before = prompt ?: text.tokens()
        val sink = Sink(options, listener, before.size, if (model.bundle.manifest.text.tokenizer == null) null else Detokenizer(model.tokenizer, before))
        val ended = text.generate(prompt, options.copy(stop = emptyList()), sink)
        sink.finish(ended).also { stats = it }
    }

    /** Tokens of the engine -> text, cut at stop strings -> the listener. */
    private inner class Sink(options: GenerateOptions, private val listener: TokenListener, private val begun: Int, private val detokenizer: Detokenizer?) : TokenSink {
        private val stops = StopStrings(options.stop)
        private var refused = false

        override fun accept(id: Int, drafted: Boolean): Boolean {
            val piece = stops.push(detokenizer?.push(id).orEmpty())
            refused = !listener.onToken(Token(id, piece, drafted))
            return !refused && !stops.hit
        }

        override fun prompt(done: Int, total: Int): Boolean = (listener as? Watch)?.active ?: true

        /** Delivers held-back text, and records how the generation ended. */
        fun finish(ended: Stats): Stats {
            if (refused) {
                // Tokens that were not collected are removed from the text.
                if (listener is Watch) text.truncate(minOf(text.length, begun + listener.count))
                return ended.copy(finish = Finish.STOPPED)
            }
            val rest = stops.push(detokenizer?.flush().orEmpty()) + if (stops.hit) "" else stops.flush()
            if (rest.isNotEmpty()) listener.onToken(Token(-1, rest, false))
            return if (stops.hit) ended.copy(finish = Finish.STOP) else ended
        }
    }

    /** Ends the generation that runs on this session with [CancelledException], from another thread. */
    fun cancel() = text.cancel()

    /** An independent session with the same text. */
    fun fork(): Session = exclusively { model.adopt(text.fork()) }

    /** Drops the tokens from [length] on. */
    fun truncate(length: Int) = exclusively { text.truncate(length) }

    /** Text and random state (and, of the native engine, the cache) to a file: whole or not at all. */
    fun save(file: File) = exclusively { text.save(file) }

    /** Restores a saved session. A file that does not fit changes nothing. */
    fun load(file: File) = exclusively { text.load(file) }

    override fun close() {
        text.cancel()
        lock.withLock { if (closed.compareAndSet(false, true)) text.close() }
    }

    private fun <T> exclusively(run: () -> T): T {
        if (lock.isHeldByCurrentThread || !lock.tryLock()) throw UsageException("the session is in use; wait for its generation to end, or fork it")
        try {
            if (closed.get()) throw UsageException("the session is closed; make another one")
            return run()
        } finally {
            lock.unlock()
        }
    }
}
