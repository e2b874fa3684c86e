package org.edgedec.demo

import java.io.File
import org.edgedec.text.Message
import org.json.JSONArray
import org.json.JSONException
import org.json.JSONObject

/** A turn on the screen. [drafted]: places of the text that were drafted, as pairs (from, to). */
class Turn(val mine: Boolean, text: String, drafted: List<IntRange> = emptyList()) {
    private val written = StringBuilder(text)
    private val marks = ArrayList(drafted)

    val text: String get() = written.toString()
    val drafted: List<IntRange> get() = marks

    fun add(piece: String, drafted: Boolean) {
        if (drafted && piece.isNotEmpty()) marks.add(written.length until written.length + piece.length)
        written.append(piece)
    }
}

/** The turns of a text, and the file that outlives the process. */
class Conversation(private val file: File) {
    val turns = ArrayList<Turn>()

    fun messages(): List<Message> = turns.filter { it.text.isNotEmpty() }.map { Message(if (it.mine) "user" else "assistant", it.text) }

    /** The whole text, which a story continues. */
    fun text(): String = turns.joinToString("") { it.text }

    /** Writes the file under a temporary name, then renames it. */
    fun save() {
        val all = JSONArray()
        for (turn in turns) {
            val marks = JSONArray()
            turn.drafted.forEach { marks.put(it.first).put(it.last) }
            all.put(JSONObject().put("mine", turn.mine).put("text", turn.text).put("drafted", marks))
        }
        val part = File(file.path + ".part")
        part.outputStream().use {
            it.write(all.toString().toByteArray())
            it.fd.sync()
        }
        part.renameTo(file)
    }

    /** The saved turns; none if there is no file, or it is damaged. */
    fun restore() {
        turns.clear()
        if (!file.isFile) return
        try {
            val all = JSONArray(file.readText())
            for (i in 0 until all.length()) turns.add(turn(all.getJSONObject(i)))
        } catch (e: JSONException) {
            turns.clear()
        }
    }

    private fun turn(o: JSONObject): Turn {
        val marks = o.getJSONArray("drafted")
        val text = o.getString("text")
        val ranges = (0 until marks.length() / 2).map { marks.getInt(2 * it)..marks.getInt(2 * it + 1) }.filter { it.first >= 0 && it.last < text.length }
        return Turn(o.getBoolean("mine"), text, ranges)
    }

    fun clear() {
        turns.clear()
        file.delete()
    }
}
