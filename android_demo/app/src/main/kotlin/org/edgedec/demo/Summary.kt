package org.edgedec.demo

import java.io.File
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.ensureActive
import org.edgedec.GenerateOptions
import org.edgedec.Model
import org.edgedec.text.Message

/**
 * The summary of a text file: of each part that fits into the model's context, then of these together.
 * Finished parts are lines of a second file, so that an interrupted run can be resumed.
 */
class Summary(private val model: Model, private val file: File, private val out: File) {
    private val done = File(file.path + ".parts")
    private val session = model.session()

    suspend fun run(progress: (Int, Int) -> Unit) {
        val parts = parts(file.readText())
        val lines = if (done.isFile) done.readLines().toMutableList() else ArrayList()
        for (i in lines.size until parts.size) {
            currentCoroutineContext().ensureActive()
            progress(i, parts.size)
            lines.add(ask(parts[i]).replace('\n', ' ').trim())
            val part = File(done.path + ".part")
            part.writeText(lines.joinToString("\n"))
            part.renameTo(done)
        }
        val part = File(out.path + ".part")
        part.writeText(if (lines.size > 1) ask(lines.joinToString(" ")).trim() + "\n\n" + lines.joinToString("\n\n") else lines.joinToString(""))
        part.renameTo(out)
        done.delete()
    }

    private suspend fun ask(text: String): String {
        val cut = model.tokenizer.encode(text, special = false, around = false).let { model.tokenizer.decode(it.copyOf(minOf(it.size, room()))) }
        val answer = StringBuilder()
        val question = "$ASK\n\n$cut"
        val options = GenerateOptions(maxTokens = ANSWER)
        val tokens = if (model.chats) session.chat(listOf(Message("user", question)), options) else session.generate("$question\n\nSummary:", options)
        tokens.collect { answer.append(it.text) }
        return answer.toString()
    }

    private fun room() = maxOf(session.capacity - ANSWER - OVERHEAD, 16)

    /** Paragraphs, as many as fit; one that does not fit by itself is cut. */
    internal fun parts(text: String): List<String> {
        val ids = model.tokenizer.encode(text, special = false, around = false)
        val size = room()
        return (0 until maxOf((ids.size + size - 1) / size, 1)).map { i -> model.tokenizer.decode(ids.copyOfRange(i * size, minOf((i + 1) * size, ids.size))) }
    }

    private companion object {
        const val ASK = "Summarize this text in a few sentences:"
        const val ANSWER = 120
        const val OVERHEAD = 64
    }
}
