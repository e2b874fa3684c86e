package org.edgedec.bundle

import kotlinx.serialization.SerializationException
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.contentOrNull
import kotlinx.serialization.json.doubleOrNull
import kotlinx.serialization.json.intOrNull
import kotlinx.serialization.json.longOrNull
import org.edgedec.CorruptException
import org.edgedec.Sampling
import org.edgedec.UnsafeException

data class FileFacts(val size: Long, val sha256: String)

/** An attention block: the sizes of its cache, and its window. [window] null: all. */
data class Attention(val kvHeads: Int, val headDim: Int, val window: Int?, val sinks: Int)

/** The text part: tokenizer file (null: tokens only), end tokens, chat template, suggested sampling. */
data class TextFacts(
    val tokenizer: String?,
    val bos: Int?,
    val eos: Set<Int>,
    val names: Map<String, String>,
    val chatTemplate: String?,
    val sampling: Sampling,
)

/** The manifest, as far as this library reads it. */
class Manifest internal constructor(
    val name: String,
    val source: String,
    val origin: String,
    val vocabSize: Int,
    val hiddenSize: Int,
    val contextLength: Int,
    val kinds: Set<String>,
    val attention: List<Attention>,
    val kvFormats: List<String>,
    val text: TextFacts,
    val files: Map<String, FileFacts>,
    val artifacts: Map<String, JsonObject>,
    val quantization: String,
    /** Texts of more tokens have other ropes (LongRoPE); 0: they have not. */
    val originalLength: Int = 0,
) {
    /** Of all files. */
    val bytes: Long get() = files.values.sumOf { it.size }

    companion object {
        private val PLAIN_NAME = Regex("[A-Za-z0-9_][A-Za-z0-9_.+-]*")
        private val VERSIONS = 4..6

        /** [where] names the file in messages. */
        fun parse(raw: ByteArray, where: String): Manifest {
            val json = try {
                Json.parseToJsonElement(raw.decodeToString(throwOnInvalidSequence = true)) as? JsonObject
            } catch (e: Exception) {
                throw CorruptException("$where: not a manifest: ${e.message?.lineSequence()?.first()}", e)
            } catch (e: StackOverflowError) {
                throw CorruptException("$where: not a manifest: nested too deeply")
            } ?: throw CorruptException("$where: not a manifest: no object")
            return Reading(json, where).manifest()
        }

        internal fun checkVersion(json: JsonObject, where: String) {
            if ((json["format"] as? JsonPrimitive)?.contentOrNull != "edgedec-bundle") throw CorruptException("$where: not the manifest of a bundle")
            val version = (json["version"] as? JsonPrimitive)?.intOrNull
            if (version == null || version !in VERSIONS) {
                throw CorruptException("$where: format version $version; this library reads ${VERSIONS.first} to ${VERSIONS.last}: export the bundle again or upgrade")
            }
        }

        internal fun checkName(name: String, where: String) {
            if (!PLAIN_NAME.matches(name)) throw UnsafeException("$where: '${name.take(60)}' is not a plain file name")
        }
    }
}

/** Reads the fields of a manifest; errors name the field. */
private class Reading(private val json: JsonObject, private val where: String) {
    fun manifest(): Manifest {
        Manifest.checkVersion(json, where)
        val spec = json.obj("spec")
        val blocks = (spec["layers"] as? JsonArray ?: fail("spec.layers")).flatMap { it as? JsonArray ?: fail("spec.layers") }
            .map { it as? JsonObject ?: fail("spec.layers") }
        val quantization = json["quantization"] as? JsonObject
        return Manifest(
            name = json.text("name") ?: "",
            source = json.text("source") ?: "",
            origin = json.text("origin") ?: "",
            vocabSize = spec.whole("vocab_size"),
            hiddenSize = spec.whole("hidden_size"),
            contextLength = spec.whole("context_length"),
            kinds = blocks.map { it.text("kind") ?: fail("spec.layers: kind") }.toSet(),
            attention = blocks.filter { it.text("kind") == "attention" }.map(::attention),
            kvFormats = (json["kv_formats"] as? JsonArray ?: fail("kv_formats")).map { it.string() ?: fail("kv_formats") },
            text = text(),
            files = json.obj("files").mapValues { (name, facts) -> fileFacts(name, facts) },
            artifacts = json.optional("artifacts").mapValues { it.value as? JsonObject ?: fail("artifacts") },
            quantization = quantization?.text("body") ?: "",
            originalLength = (spec["ropes"] as? JsonArray ?: JsonArray(emptyList())).maxOfOrNull { (it as? JsonObject)?.number("original")?.toInt() ?: 0 } ?: 0,
        )
    }

    private fun attention(block: JsonObject): Attention {
        if (block["embedding_norm"].string().let { it != null && it != "none" }) fail("spec.layers: embedding_norm, which no whole model has")
        return Attention(block.whole("n_kv_heads"), block.whole("head_dim"), block.number("window")?.toInt(), block.number("sinks")?.toInt() ?: 0)
    }

    private fun fileFacts(name: String, facts: JsonElement): FileFacts {
        Manifest.checkName(name, where)
        val size = (facts as? JsonObject)?.number("size") ?: fail("files.$name.size")
        val hash = facts.text("sha256") ?: fail("files.$name.sha256")
        if (size < 0) fail("files.$name.size")
        return FileFacts(size, hash)
    }

    private fun text(): TextFacts {
        val text = json.optional("text")
        return TextFacts(
            tokenizer = text.text("tokenizer"),
            bos = text.number("bos")?.toInt(),
            eos = (text["eos"] as? JsonArray).orEmpty().map { (it as? JsonPrimitive)?.intOrNull ?: fail("text.eos") }.toSet(),
            names = text.filterKeys { it.endsWith("_token") }.mapNotNull { (k, v) -> v.string()?.let { k to it } }.toMap(),
            chatTemplate = text.text("chat_template"),
            sampling = readSampling(text.optional("sampling")),
        )
    }

    private fun JsonObject.obj(name: String): JsonObject = this[name] as? JsonObject ?: fail(name)

    private fun JsonObject.optional(name: String): JsonObject = this[name] as? JsonObject ?: JsonObject(emptyMap())

    private fun JsonObject.text(name: String): String? = this[name].string()

    private fun JsonObject.number(name: String): Long? = (this[name] as? JsonPrimitive)?.longOrNull

    private fun JsonObject.whole(name: String): Int {
        val n = number(name) ?: fail(name)
        return if (n in 1..Int.MAX_VALUE.toLong()) n.toInt() else fail(name)
    }

    private fun JsonElement?.string(): String? = (this as? JsonPrimitive)?.takeIf { it !is JsonNull && it.isString }?.content

    private fun fail(field: String): Nothing = throw CorruptException("$where: $field is missing or malformed; export the bundle again")
}

/** Sampling settings as Python writes them; missing ones have their defaults. */
internal fun readSampling(o: JsonObject): Sampling {
    fun real(name: String, otherwise: Double) = (o[name] as? JsonPrimitive)?.doubleOrNull ?: otherwise
    return Sampling(
        temperature = real("temperature", 0.0),
        topK = real("top_k", 0.0).toInt(),
        topP = real("top_p", 1.0),
        minP = real("min_p", 0.0),
        typicalP = real("typical_p", 1.0),
        repetitionPenalty = real("repetition_penalty", 1.0),
        presencePenalty = real("presence_penalty", 0.0),
        frequencyPenalty = real("frequency_penalty", 0.0),
    )
}
