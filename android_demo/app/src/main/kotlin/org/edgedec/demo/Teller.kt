package org.edgedec.demo

import android.content.Context
import java.io.File
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.sync.Mutex
import kotlinx.coroutines.sync.withLock
import kotlinx.coroutines.withContext
import org.edgedec.Drafts
import org.edgedec.Edgedec
import org.edgedec.EdgedecException
import org.edgedec.GenerateOptions
import org.edgedec.Model
import org.edgedec.Session
import org.edgedec.SessionOptions
import org.edgedec.Stats
import org.edgedec.UnavailableException
import org.edgedec.bundle.Importer
import org.edgedec.bundle.Progress

/** The state of the screen. [version] grows with every change. */
data class Shown(val status: Status, val busy: Boolean, val version: Long)

sealed class Status {
    data class Preparing(val name: String, val percent: Int) : Status()

    data class Opening(val name: String) : Status()

    data class Ready(val name: String, val engine: String, val threads: Int, val device: String) : Status()

    object Writing : Status()

    data class Ended(val stats: Stats) : Status()

    data class Failed(val message: String) : Status()
}

/**
 * The model, the session and the conversation of the app. Lives as long as the process: a recreated activity
 * finds the generation still running. State that outlives the process is in files: the conversation and the
 * session. Used on the main thread; computing is done on [work].
 */
class Teller(private val context: Context, private val scope: CoroutineScope, private val work: CoroutineDispatcher = Dispatchers.Default) {
    val bundles = Importer(File(context.filesDir, "bundles"))
    val conversation = Conversation(File(context.filesDir, "conversation.json"))

    var settings = Settings.of(context)
        private set

    private val state = MutableStateFlow(Shown(Status.Opening(settings.bundle), true, 0))
    val shown: StateFlow<Shown> get() = state

    private val sessionFile = File(context.filesDir, "conversation.session")
    private val opening = Mutex()
    private var model: Model? = null
    private var session: Session? = null
    private var running: Job? = null

    fun start() {
        conversation.restore()
        scope.launch {
            withContext(work) { bundles.clean() } // files left by a killed process
            guarded { open() }
        }
    }

    /** Opens the chosen bundle, with the session that was saved if it fits. */
    private suspend fun open(): Model = opening.withLock {
        model?.let { return@withLock it }
        show(Status.Opening(settings.bundle), busy = true)
        val opened = withContext(work) { Edgedec.open(folder(settings.bundle), settings.open()) }
        model = opened
        session = withContext(work) { newSession(opened).also { restore(it) } }
        show(Status.Ready(opened.bundle.name, opened.engine, opened.threads, opened.device), busy = false)
        opened
    }

    /** Nano is copied out of the app's assets once: engines map files. */
    private fun folder(name: String): File {
        val folder = File(context.filesDir, "bundles/$name")
        if (name != Settings.NANO || folder.isDirectory) return folder
        return bundles.copy(name, { context.assets.open("$name/$it") }, Progress { done, total -> preparing(name, done, total) })
    }

    private fun preparing(name: String, done: Long, total: Long): Boolean {
        val percent = (done * 100 / maxOf(total, 1)).toInt()
        scope.launch { if (model == null) show(Status.Preparing(name, percent), busy = true) }
        return true
    }

    private fun newSession(model: Model): Session {
        if (!settings.drafts) return model.session()
        return try {
            model.session(SessionOptions(drafts = if (model.engine == "native") Drafts.AUTO else Drafts.COPY))
        } catch (e: UnavailableException) { // a library without drafters
            model.session()
        }
    }

    private fun restore(session: Session) {
        try {
            if (sessionFile.isFile) session.load(sessionFile)
        } catch (e: EdgedecException) { // of another bundle or engine: the text is read again when it goes on
            sessionFile.delete()
        }
    }

    /** The user's turn, and the model's after it. */
    fun say(text: String) {
        if (running?.isActive == true) return
        if (text.isNotEmpty()) conversation.turns.add(Turn(true, text))
        val answer = Turn(false, "")
        conversation.turns.add(answer)
        running = scope.launch { guarded { answer(open(), answer) } }
    }

    private suspend fun answer(model: Model, answer: Turn) {
        val own = session ?: return
        show(Status.Writing, busy = true)
        try {
            tokens(model, own).collect { token ->
                answer.add(token.text, token.drafted)
                show(Status.Writing, busy = true)
            }
        } finally {
            if (answer.text.isEmpty()) conversation.turns.remove(answer)
            withContext(kotlinx.coroutines.NonCancellable + work) { save() }
        }
        show(Status.Ended(own.stats!!), busy = false)
    }

    private fun tokens(model: Model, own: Session) = GenerateOptions(maxTokens = LONGEST, sampling = model.sampling).let { options ->
        if (settings.chats && model.chats) own.chat(conversation.messages(), options) else own.generate(conversation.text(), options)
    }

    fun stop() {
        running?.let { job -> scope.launch { job.cancelAndJoin().also { ready() } } }
    }

    private fun ready() {
        model?.let { show(Status.Ready(it.bundle.name, it.engine, it.threads, it.device), busy = false) }
    }

    fun clear() = closing {
        conversation.clear()
        sessionFile.delete()
    }

    fun change(to: Settings) = closing {
        settings = to
        to.save(context)
        sessionFile.delete()
    }

    /** Closes the model, does something, and opens it again. */
    private fun closing(between: () -> Unit) {
        scope.launch {
            running?.cancelAndJoin()
            guarded {
                opening.withLock {
                    val old = model
                    model = null
                    session = null
                    withContext(work) { old?.close() }
                    between()
                }
                open()
            }
        }
    }

    private fun save() {
        conversation.save()
        try {
            session?.save(sessionFile)
        } catch (e: EdgedecException) { // the text alone is enough to go on
            sessionFile.delete()
        }
    }

    /** The system is short of memory. */
    fun trim() = model?.trim() ?: Unit

    private suspend fun guarded(run: suspend () -> Unit) {
        try {
            run()
        } catch (e: CancellationException) {
            ready()
            throw e
        } catch (e: EdgedecException) {
            show(Status.Failed(e.message.orEmpty()), busy = false)
        }
    }

    private fun show(status: Status, busy: Boolean) {
        state.value = Shown(status, busy, state.value.version + 1)
    }

    private companion object {
        const val LONGEST = 400
    }
}
