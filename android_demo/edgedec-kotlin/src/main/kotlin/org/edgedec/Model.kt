package org.edgedec

import java.util.Collections
import java.util.WeakHashMap
import org.edgedec.bundle.Bundle
import org.edgedec.engine.Engine
import org.edgedec.engine.EngineModel
import org.edgedec.text.ChatTemplate
import org.edgedec.text.Message
import org.edgedec.text.Tokenizer

/** An open bundle. May be used by any number of threads; [close] also closes its sessions. */
class Model internal constructor(val bundle: Bundle, private val from: Engine, private val opened: EngineModel) : AutoCloseable {
    private val sessions = Collections.newSetFromMap(WeakHashMap<Session, Boolean>())

    val engine: String get() = from.name
    val threads: Int get() = opened.threads
    val kv: String get() = opened.kv
    val device: String get() = opened.device

    /** The sampling settings suggested by the model. */
    val sampling: Sampling get() = bundle.manifest.text.sampling

    val tokenizer: Tokenizer by lazy {
        Tokenizer.open(bundle.file(bundle.manifest.text.tokenizer ?: throw TextException("${bundle.folder}: has no tokenizer; give tokens")))
    }

    private val template: ChatTemplate? by lazy { bundle.manifest.text.chatTemplate?.let(::ChatTemplate) }

    val chats: Boolean get() = bundle.manifest.text.chatTemplate != null

    /** A chat as tokens, through the model's own template. */
    fun chatTokens(messages: List<Message>): IntArray {
        val own = template ?: throw TextException("${bundle.name}: has no chat template; give a prompt")
        return tokenizer.encode(own.render(messages, bundle.manifest.text.names), around = false)
    }

    @JvmOverloads
    fun session(options: SessionOptions = SessionOptions()): Session = adopt(opened.text(options.context, options.drafts))

    internal fun adopt(text: org.edgedec.engine.EngineText): Session =
        Session(this, text).also { session -> synchronized(sessions) { sessions.add(session) } }

    /**
     * For Android's `onTrimMemory`: frees memory that can be rebuilt. Weights are mapped files, which the system
     * drops by itself. Sessions stay as they are.
     */
    fun trim() = opened.trim()

    override fun close() {
        val all = synchronized(sessions) { sessions.toList().also { sessions.clear() } }
        all.forEach(Session::close)
        opened.close()
    }
}
