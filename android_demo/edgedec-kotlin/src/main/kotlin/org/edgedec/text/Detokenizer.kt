package org.edgedec.text

/**
 * Text of tokens as they come: the pieces joined are `decode` of all tokens after the prompt. Text that later
 * tokens may change is held back: bytes of an unfinished character, and runs of byte tokens.
 */
class Detokenizer @JvmOverloads constructor(private val tokenizer: Tokenizer, prompt: IntArray = IntArray(0)) {
    private val bytes = java.io.ByteArrayOutputStream()
    private var anchor: List<String> = emptyList()
    private val held = ArrayList<String>()
    private var told = ""

    init {
        val pieces = prompt.toList().takeLast(TAIL).mapNotNull { tokenizer.piece(it, false) }
        if (tokenizer.bytewise) {
            pieces.forEach { push(it) }
            told = lossy(bytes.toByteArray())
        } else {
            val start = pieces.indexOfLast { !isByte(it) }
            anchor = if (start >= 0) listOf(pieces[start]) else emptyList()
            held.addAll(pieces.drop(start + 1))
            told = window()
        }
    }

    /** The text that this token completes. */
    fun push(token: Int): String = tokenizer.piece(token, false)?.let(::push) ?: ""

    /** The rest, as it reads if nothing more comes. */
    fun flush(): String {
        val text = if (tokenizer.bytewise) lossy(bytes.toByteArray()) else window()
        bytes.reset()
        held.clear()
        return untold(text)
    }

    private fun push(piece: String): String {
        if (piece.isEmpty()) return ""
        if (tokenizer.bytewise) return untold(wholeCharacters(ByteLetters.read(piece)))
        held.add(piece)
        if (isByte(piece)) return ""
        val text = untold(window())
        held.clear()
        anchor = listOf(piece)
        return text
    }

    private fun wholeCharacters(more: ByteArray): String {
        bytes.write(more)
        val all = bytes.toByteArray()
        val unfinished = unfinished(all)
        bytes.reset()
        bytes.write(all, all.size - unfinished, unfinished)
        return lossy(all.copyOf(all.size - unfinished))
    }

    /** How many bytes at the end may be the beginning of a character. */
    private fun unfinished(all: ByteArray): Int {
        for (back in 1..minOf(3, all.size)) {
            val b = all[all.size - back].toInt() and 0xff
            if (b and 0xC0 == 0x80) continue
            val length = if (b in 0xC2..0xDF) 2 else if (b in 0xE0..0xEF) 3 else if (b in 0xF0..0xF4) 4 else 1
            return if (length > back && possible(all, all.size - back)) back else 0
        }
        return 0
    }

    /** Whether the two bytes at `at` can begin a character. */
    private fun possible(all: ByteArray, at: Int): Boolean {
        if (at + 1 >= all.size) return true
        val second = all[at + 1].toInt() and 0xff
        return when (all[at].toInt() and 0xff) {
            0xE0 -> second >= 0xA0
            0xED -> second < 0xA0
            0xF0 -> second >= 0x90
            0xF4 -> second < 0x90
            else -> true
        }
    }

    private fun window(): String = tokenizer.decodePieces(anchor + held).drop(tokenizer.decodePieces(anchor).length)

    private fun untold(text: String): String {
        if (text.isEmpty()) return ""
        val before = told
        told = ""
        return text.removePrefix(before)
    }

    private companion object {
        const val TAIL = 64
    }
}
