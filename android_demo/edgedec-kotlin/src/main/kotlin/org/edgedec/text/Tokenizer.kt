package org.edgedec.text

import java.io.File
import java.nio.ByteBuffer
import java.nio.CharBuffer
import java.nio.charset.CodingErrorAction
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.booleanOrNull
import kotlinx.serialization.json.contentOrNull
import kotlinx.serialization.json.intOrNull
import org.edgedec.TextException

/**
 * A tokenizer.json whose model is BPE: byte-level vocabularies (GPT-2, Llama 3, Qwen, SmolLM) and SentencePiece's with byte
 * fallback (Llama 2, Mistral, Gemma, Phi-3). An unsupported part is an error at opening, never skipped.
 * Written here because the maintained library for the JVM (DJL's) has natives for desktops only; a test compares the two.
 */
class Tokenizer internal constructor(
    private val added: AddedTokens,
    private val normalizer: Normalizer,
    private val splitter: Splitter,
    private val model: Bpe,
    private val decoder: Decoder,
    private val around: Pair<IntArray, IntArray>,
) {
    val vocabSize: Int get() = maxOf(model.size, added.size)

    /** Tokens. [special]: special tokens that stand in the text are read as such; [around]: the model's first token is put before it. */
    @JvmOverloads
    fun encode(text: String, special: Boolean = true, around: Boolean = true): IntArray {
        val out = IntList()
        if (special && around) out.add(this.around.first)
        for (part in added.split(text, special)) {
            if (part.token >= 0) out.add(part.token) else encodePlain(part.text, part.first, out)
        }
        if (special && around) out.add(this.around.second)
        return out.toArray()
    }

    /** Text; special tokens are left out unless [special]. */
    @JvmOverloads
    fun decode(ids: IntArray, special: Boolean = false): String = decoder.decode(ids.toList().mapNotNull { piece(it, special) })

    /** How the vocabulary writes a token; null: it has no text here. */
    internal fun piece(id: Int, special: Boolean): String? = when {
        id in added.special && !special -> null
        else -> added.text(id) ?: model.text(id)
    }

    internal val bytewise: Boolean get() = decoder == Decoder.BYTES

    internal fun decodePieces(pieces: List<String>): String = decoder.decode(pieces)

    private fun encodePlain(text: String, first: Boolean, out: IntList) {
        for (word in splitter.split(normalizer.apply(text), first)) model.encode(word, out)
    }

    companion object {
        /** Reads a tokenizer.json. */
        @JvmStatic
        fun open(file: File): Tokenizer {
            if (file.length() > LARGEST) throw TextException("$file: ${file.length()} bytes; a tokenizer.json of at most $LARGEST is read")
            return try {
                parse(org.edgedec.bundle.read(file).decodeToString(throwOnInvalidSequence = true))
            } catch (e: TextException) {
                throw TextException("$file: ${e.message}", e)
            } catch (e: CharacterCodingException) {
                throw TextException("$file: not a tokenizer.json: not UTF-8", e)
            }
        }

        /** Of the text of a tokenizer.json. */
        @JvmStatic
        fun parse(text: String): Tokenizer = try {
            TokenizerReader(Json.parseToJsonElement(text) as JsonObject).read()
        } catch (e: TextException) {
            throw e
        } catch (e: RuntimeException) {
            throw TextException("not a tokenizer.json: ${e.message?.lineSequence()?.first()?.take(200)}", e)
        } catch (e: StackOverflowError) {
            throw TextException("not a tokenizer.json: nested too deeply")
        }

        private const val LARGEST = 128L shl 20
    }
}

private typealias CharacterCodingException = java.nio.charset.CharacterCodingException

/** Tokens that are found in a text before all else. */
internal class AddedTokens(tokens: List<AddedToken>) {
    private val byId = tokens.associateBy { it.id }
    private val matched = tokens.filter { it.content.isNotEmpty() }.sortedByDescending { it.content.length }
    private val starts = matched.map { it.content[0] }.toSet()
    val special = tokens.filter { it.special }.map { it.id }.toSet()
    val size: Int = (byId.keys.maxOrNull() ?: -1) + 1

    class Part(val text: String, val token: Int, val first: Boolean)

    fun text(id: Int): String? = byId[id]?.content

    fun split(text: String, special: Boolean): List<Part> {
        val parts = ArrayList<Part>()
        var begun = 0
        var i = 0
        while (i < text.length) {
            val found = if (text[i] in starts) matched.find { (special || !it.special) && text.startsWith(it.content, i) } else null
            if (found == null) {
                i++
                continue
            }
            var stop = i
            if (found.lstrip) while (stop > begun && text[stop - 1].isWhitespace()) stop--
            if (stop > begun) parts.add(Part(text.substring(begun, stop), -1, begun == 0))
            parts.add(Part("", found.id, false))
            i += found.content.length
            if (found.rstrip) while (i < text.length && text[i].isWhitespace()) i++
            begun = i
        }
        if (begun < text.length) parts.add(Part(text.substring(begun), -1, begun == 0))
        return parts
    }
}

internal class AddedToken(val id: Int, val content: String, val special: Boolean, val lstrip: Boolean, val rstrip: Boolean)

internal class IntList {
    private var items = IntArray(64)
    var size = 0
        private set

    fun add(value: Int) {
        if (size == items.size) items = items.copyOf(size * 2)
        items[size++] = value
    }

    fun add(values: IntArray) = values.forEach(::add)

    fun toArray(): IntArray = items.copyOf(size)
}
