package org.edgedec

import java.io.File
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonNull
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.booleanOrNull
import kotlinx.serialization.json.doubleOrNull
import kotlinx.serialization.json.int
import kotlinx.serialization.json.jsonArray
import kotlinx.serialization.json.jsonObject
import kotlinx.serialization.json.jsonPrimitive
import kotlinx.serialization.json.longOrNull
import org.edgedec.bundle.readSampling
import org.edgedec.engine.NativeEngine
import org.junit.jupiter.api.Assumptions.assumeTrue

/** What Python says (tests/kotlin_golden.py). */
val golden: JsonObject = Json.parseToJsonElement(
    NANO.javaClass.getResource("/golden.json")!!.readText(),
).jsonObject

object NANO {
    val folder = File(System.getProperty("edgedec.nano"))

    fun open(engine: String, threads: Int = 1, kv: String? = null): Model {
        if (engine == "native") {
            val reason = NativeEngine.unavailable(org.edgedec.bundle.Bundle.open(folder))
            assumeTrue(reason == null) { reason }
        }
        return Edgedec.open(folder, OpenOptions(engine = engine, threads = threads, kv = kv))
    }
}

fun JsonObject.list(name: String): List<JsonObject> = getValue(name).jsonArray.map { it.jsonObject }

fun JsonObject.text(name: String): String = getValue(name).jsonPrimitive.content

fun JsonObject.ints(name: String): List<Int> = getValue(name).jsonArray.map { it.jsonPrimitive.int }

/** Plain values, as templates have them. */
fun plain(e: JsonElement): Any? = when (e) {
    is JsonNull -> null
    is JsonObject -> e.mapValues { plain(it.value) }
    is JsonArray -> e.map(::plain)
    is JsonPrimitive -> if (e.isString) e.content else e.booleanOrNull ?: e.longOrNull ?: e.doubleOrNull
}

/** Those of a manifest, and what only a request has. */
fun sampling(o: JsonObject): Sampling = readSampling(o).copy(
    logitBias = o["logit_bias"]?.jsonObject?.map { (k, v) -> k.toInt() to v.jsonPrimitive.doubleOrNull!!.toFloat() }?.toMap() ?: emptyMap(),
    seed = o["seed"]?.jsonPrimitive?.longOrNull,
)
