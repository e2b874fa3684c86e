package org.edgedec.text

import java.util.regex.Pattern

internal fun interface Normalizer {
    fun apply(text: String): String
}

/** A step that cuts texts into words or rewrites them. [first]: the text begins the prompt. */
internal interface Splitting {
    fun apply(words: List<String>, first: Boolean): List<String>
}

internal class Splitter(private val steps: List<Splitting>) {
    fun split(text: String, first: Boolean): List<String> =
        if (text.isEmpty()) emptyList() else steps.fold(listOf(text)) { words, step -> step.apply(words, first) }
}

/** What becomes of the matches of a pattern. */
internal enum class Behaviour { Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous }

internal class PatternSplit(private val pattern: Pattern, private val invert: Boolean, private val behaviour: Behaviour) : Splitting {
    override fun apply(words: List<String>, first: Boolean): List<String> = words.flatMap { join(cut(it)) }

    /** The text in pieces, and whether each is a match. */
    private fun cut(text: String): List<Pair<String, Boolean>> {
        val pieces = ArrayList<Pair<String, Boolean>>()
        val matcher = pattern.matcher(text)
        var at = 0
        while (matcher.find()) {
            if (matcher.end() == matcher.start()) continue
            if (matcher.start() > at) pieces.add(text.substring(at, matcher.start()) to invert)
            pieces.add(matcher.group() to !invert)
            at = matcher.end()
        }
        if (at < text.length) pieces.add(text.substring(at) to invert)
        return pieces
    }

    private fun join(pieces: List<Pair<String, Boolean>>): List<String> {
        val out = ArrayList<String>()
        var before = false // was the piece before a match?
        pieces.forEach { (text, match) ->
            val merged = when (behaviour) {
                Behaviour.Isolated -> false
                Behaviour.Removed -> false
                Behaviour.MergedWithPrevious -> match && !before && out.isNotEmpty()
                Behaviour.MergedWithNext -> !match && before
                Behaviour.Contiguous -> match == before && out.isNotEmpty()
            }
            if (merged) out[out.size - 1] += text else if (behaviour != Behaviour.Removed || !match) out.add(text)
            before = match
        }
        return out
    }
}

internal object PrefixSpace : Splitting {
    override fun apply(words: List<String>, first: Boolean) = words.map { if (it.startsWith(" ")) it else " $it" }
}

internal object ToByteLetters : Splitting {
    override fun apply(words: List<String>, first: Boolean) = words.map(ByteLetters::write)
}

/** Spaces become a mark, and words begin with it. */
internal class Metaspace(private val mark: String, private val scheme: String, private val split: Boolean) : Splitting {
    override fun apply(words: List<String>, first: Boolean): List<String> = words.flatMap { word ->
        var text = word.replace(" ", mark)
        if ((scheme == "always" || (scheme == "first" && first)) && !text.startsWith(mark)) text = mark + text
        if (split) cut(text) else listOf(text)
    }

    private fun cut(text: String): List<String> {
        val out = ArrayList<String>()
        var begun = 0
        for (i in 1 until text.length) if (text.startsWith(mark, i)) {
            out.add(text.substring(begun, i))
            begun = i
        }
        out.add(text.substring(begun))
        return out
    }
}

/** GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and up, in order. */
internal object ByteLetters {
    private val letters = CharArray(256)
    private val bytes = HashMap<Char, Byte>()

    init {
        var next = 0x100
        for (b in 0..255) letters[b] = if (b in 0x21..0x7E || b in 0xA1..0xAC || b in 0xAE..0xFF) b.toChar() else (next++).toChar()
        for (b in 0..255) bytes[letters[b]] = b.toByte()
    }

    fun write(text: String): String {
        val raw = text.toByteArray()
        return String(CharArray(raw.size) { letters[raw[it].toInt() and 0xff] })
    }

    /** The bytes of a spelling; one that is not of this alphabet is itself. */
    fun read(piece: String): ByteArray {
        val out = ByteArray(piece.length)
        for (i in piece.indices) out[i] = bytes[piece[i]] ?: return piece.toByteArray()
        return out
    }
}

internal fun interface Decoder {
    fun decode(pieces: List<String>): String

    companion object {
        /** Of a byte-level vocabulary. */
        val BYTES = Decoder { pieces ->
            val out = java.io.ByteArrayOutputStream()
            pieces.forEach { out.write(ByteLetters.read(it)) }
            lossy(out.toByteArray())
        }
    }
}

/** UTF-8 with U+FFFD for what is broken, as many as Rust and Python put there. */
internal fun lossy(bytes: ByteArray): String = String(bytes, Charsets.UTF_8)

private val BYTE = Regex("<0x[0-9A-Fa-f]{2}>")

internal fun isByte(piece: String) = BYTE.matches(piece)

/** Runs of bytes such as <0xE2> as text; a run that is no UTF-8 becomes one U+FFFD a byte. */
internal fun byteFallback(pieces: List<String>): List<String> {
    val out = ArrayList<String>()
    val run = java.io.ByteArrayOutputStream()
    fun end() {
        if (run.size() == 0) return
        val text = try {
            run.toByteArray().decodeToString(throwOnInvalidSequence = true)
        } catch (e: java.nio.charset.CharacterCodingException) {
            "\uFFFD".repeat(run.size())
        }
        out.add(text)
        run.reset()
    }
    for (piece in pieces) {
        if (isByte(piece)) run.write(piece.substring(3, 5).toInt(16))
        else {
            end()
            out.add(piece)
        }
    }
    end()
    return out
}

internal fun strip(text: String, content: String, start: Int, stop: Int): String {
    var from = 0
    var to = text.length
    var n = start
    while (n-- > 0 && text.startsWith(content, from) && from < to) from += content.length
    n = stop
    while (n-- > 0 && to > from && text.substring(from, to).endsWith(content)) to -= content.length
    return text.substring(from, to)
}
