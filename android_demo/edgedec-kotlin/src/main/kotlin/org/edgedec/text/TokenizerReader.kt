package org.edgedec.text

import java.util.regex.Pattern
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.booleanOrNull
import kotlinx.serialization.json.contentOrNull
import kotlinx.serialization.json.int
import kotlinx.serialization.json.intOrNull
import org.edgedec.TextException

/** Reads the parts of a tokenizer.json. */
internal class TokenizerReader(private val json: JsonObject) {
    fun read(): Tokenizer {
        val model = json.objectOrNull("model") ?: throw TextException("no model")
        if ((model.text("type") ?: "BPE") != "BPE") throw unknown("model", model)
        return Tokenizer(added(), normalizer(json.objectOrNull("normalizer")), splitter(), bpe(model), decoder(json.objectOrNull("decoder")), around())
    }

    private fun added() = AddedTokens(
        (json["added_tokens"] as? JsonArray).orEmpty().map { item ->
            val o = item as JsonObject
            if (o.flag("single_word")) throw TextException("added token '${o.text("content")}': single_word is not supported")
            AddedToken(o.number("id"), o.text("content").orEmpty(), o.flag("special"), o.flag("lstrip"), o.flag("rstrip"))
        },
    )

    private fun bpe(model: JsonObject): Bpe {
        for (name in listOf("continuing_subword_prefix", "end_of_word_suffix")) {
            if (!model.text(name).isNullOrEmpty()) throw TextException("model: $name is not supported")
        }
        val vocab = (model["vocab"] as JsonObject).mapValues { (it.value as JsonPrimitive).int }
        val merges = (model["merges"] as JsonArray).map { merge ->
            if (merge is JsonArray) (merge[0] as JsonPrimitive).content to (merge[1] as JsonPrimitive).content
            else (merge as JsonPrimitive).content.let { it.substringBefore(" ") to it.substringAfter(" ") }
        }
        return Bpe(vocab, merges, model.flag("byte_fallback"), model.flag("ignore_merges"), model.text("unk_token"))
    }

    private fun normalizer(o: JsonObject?): Normalizer = when (o?.text("type")) {
        null -> Normalizer { it }
        "Sequence" -> o.list("normalizers").map(::normalizer).let { parts -> Normalizer { text -> parts.fold(text) { t, part -> part.apply(t) } } }
        "NFC", "NFD", "NFKC", "NFKD" -> java.text.Normalizer.Form.valueOf(o.text("type")!!).let { form -> Normalizer { java.text.Normalizer.normalize(it, form) } }
        "Lowercase" -> Normalizer { it.lowercase() }
        "Prepend" -> o.text("prepend").orEmpty().let { prefix -> Normalizer { if (it.isEmpty()) it else prefix + it } }
        "Replace" -> replacing(o).let { replace -> Normalizer(replace) }
        else -> throw unknown("normalizer", o)
    }

    private fun replacing(o: JsonObject): (String) -> String {
        val content = o.text("content").orEmpty()
        val pattern = o["pattern"] as? JsonObject ?: throw unknown("Replace", o)
        val plain = pattern.text("String")
        if (plain != null) return { it.replace(plain, content) }
        val regex = regex(pattern.text("Regex") ?: throw unknown("Replace", o))
        return { regex.matcher(it).replaceAll(java.util.regex.Matcher.quoteReplacement(content)) }
    }

    private fun splitter(): Splitter {
        val parts = ArrayList<Splitting>()
        collect(json.objectOrNull("pre_tokenizer"), parts)
        return Splitter(parts)
    }

    private fun collect(o: JsonObject?, parts: MutableList<Splitting>) {
        when (o?.text("type")) {
            null -> return
            "Sequence" -> o.list("pretokenizers").forEach { collect(it, parts) }
            "Split" -> parts.add(split(o))
            "Digits" -> parts.add(PatternSplit(regex(if (o.flag("individual_digits")) "\\p{N}" else "\\p{N}+"), false, Behaviour.Isolated))
            "Metaspace" -> parts.add(metaspace(o))
            "ByteLevel" -> {
                if (o.flag("add_prefix_space")) parts.add(PrefixSpace)
                if (o["use_regex"].let { it == null || (it as JsonPrimitive).booleanOrNull != false }) parts.add(PatternSplit(regex(GPT2), false, Behaviour.Isolated))
                parts.add(ToByteLetters)
            }
            else -> throw unknown("pre_tokenizer", o)
        }
    }

    private fun split(o: JsonObject): Splitting {
        val pattern = o["pattern"] as JsonObject
        val regex = pattern.text("Regex") ?: Pattern.quote(pattern.text("String") ?: throw unknown("Split", o))
        val behaviour = Behaviour.values().find { it.name == o.text("behavior") } ?: throw unknown("Split ${o.text("behavior")}", o)
        return PatternSplit(regex(regex), o.flag("invert"), behaviour)
    }

    private fun metaspace(o: JsonObject): Splitting {
        val scheme = o.text("prepend_scheme") ?: if (o.flag("add_prefix_space")) "always" else "never"
        val split = (o["split"] as? JsonPrimitive)?.booleanOrNull ?: true
        return Metaspace(o.text("replacement") ?: "\u2581", scheme, split)
    }

    private fun decoder(o: JsonObject?): Decoder = when (o?.text("type")) {
        null -> Decoder { it.joinToString(" ") }
        "ByteLevel" -> Decoder.BYTES
        "Sequence" -> sequence(o.list("decoders"))
        "Metaspace" -> sequence(listOf(o))
        "ByteFallback", "Fuse", "Strip", "Replace" -> sequence(listOf(o))
        else -> throw unknown("decoder", o)
    }

    private fun sequence(steps: List<JsonObject>): Decoder {
        if (steps.size == 1 && steps[0].text("type") == "ByteLevel") return Decoder.BYTES
        val parts = steps.map(::step)
        return Decoder { pieces -> parts.fold(pieces) { p, part -> part(p) }.joinToString("") }
    }

    private fun step(o: JsonObject): (List<String>) -> List<String> = when (o.text("type")) {
        "Fuse" -> { pieces -> listOf(pieces.joinToString("")) }
        "ByteFallback" -> ::byteFallback
        "Replace" -> replacing(o).let { replace -> { pieces -> pieces.map(replace) } }
        "Strip" -> { pieces -> pieces.map { strip(it, o.text("content") ?: " ", o.number("start"), o.number("stop")) } }
        "ByteLevel" -> { pieces -> listOf(Decoder.BYTES.decode(pieces)) }
        "Metaspace" -> metaspaceDecoder(o)
        else -> throw unknown("decoder", o)
    }

    private fun metaspaceDecoder(o: JsonObject): (List<String>) -> List<String> {
        val mark = o.text("replacement") ?: "\u2581"
        val prefixed = (o.text("prepend_scheme") ?: if (o.flag("add_prefix_space")) "always" else "never") != "never"
        return { pieces -> pieces.mapIndexed { i, p -> (if (i == 0 && prefixed) p.removePrefix(mark) else p).replace(mark, " ") } }
    }

    /** Tokens before and after a text: those of the template of a single text. */
    private fun around(): Pair<IntArray, IntArray> {
        val templates = processors(json.objectOrNull("post_processor")).filter { it.text("type") == "TemplateProcessing" }
        if (templates.size > 1) throw TextException("post_processor: more than one template is not supported")
        val o = templates.firstOrNull() ?: return IntArray(0) to IntArray(0)
        val names = o["special_tokens"] as? JsonObject ?: JsonObject(emptyMap())
        val before = IntList()
        val after = IntList()
        var passed = false
        for (item in o.list("single")) {
            val special = item.objectOrNull("SpecialToken")
            if (special == null) passed = true
            else ((names[special.text("id")] as JsonObject)["ids"] as JsonArray).forEach { (if (passed) after else before).add((it as JsonPrimitive).int) }
        }
        return before.toArray() to after.toArray()
    }

    private fun processors(o: JsonObject?): List<JsonObject> = when (o?.text("type")) {
        null, "ByteLevel" -> emptyList()
        "Sequence" -> o.list("processors").flatMap(::processors)
        "TemplateProcessing" -> listOf(o)
        else -> throw unknown("post_processor", o)
    }

    private fun unknown(where: String, o: JsonObject?) = TextException("$where: ${o?.text("type") ?: "?"} is not supported by this library; use a model with BPE")

    private fun JsonObject.objectOrNull(name: String): JsonObject? = this[name]?.takeIf { it !is JsonNull } as? JsonObject

    private fun JsonObject.text(name: String): String? = (this[name] as? JsonPrimitive)?.contentOrNull

    private fun JsonObject.flag(name: String): Boolean = (this[name] as? JsonPrimitive)?.booleanOrNull ?: false

    private fun JsonObject.number(name: String): Int = (this[name] as? JsonPrimitive)?.intOrNull ?: throw TextException("$name is no number")

    private fun JsonObject.list(name: String): List<JsonObject> = (this[name] as? JsonArray ?: throw TextException("$name is no list")).map { it as JsonObject }

    private companion object {
        const val GPT2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
    }
}

/** A pattern of a tokenizer.json. \s, \w and the like mean Unicode's, as in Oniguruma; Android's engine always does so. */
internal fun regex(pattern: String): Pattern = try {
    Pattern.compile(pattern, Pattern.UNICODE_CHARACTER_CLASS)
} catch (e: java.util.regex.PatternSyntaxException) {
    throw TextException("pattern ${pattern.take(60)}: ${e.description}", e)
} catch (e: IllegalArgumentException) { // Android has no such flag
    Pattern.compile(pattern)
}
