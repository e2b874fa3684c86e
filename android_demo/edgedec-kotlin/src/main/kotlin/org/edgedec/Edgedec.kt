package org.edgedec

import java.io.File
import org.edgedec.bundle.Bundle
import org.edgedec.engine.Engine
import org.edgedec.engine.NativeEngine
import org.edgedec.engine.OrtEngine

/**
 * On-device LLM inference.
 *
 * ```kotlin
 * Edgedec.open(File("nano")).use { model ->
 *     model.session().generate("Once upon a time").collect { print(it.text) }
 * }
 * ```
 */
object Edgedec {
    /** The best first: libedgedec, and ONNX Runtime where it is not built. */
    @JvmStatic
    val engines: List<Engine> = listOf(NativeEngine, OrtEngine)

    /** Opens a bundle folder. Throws [EdgedecException]; takes milliseconds unless [OpenOptions.verify]. */
    @JvmStatic
    @JvmOverloads
    fun open(folder: File, options: OpenOptions = OpenOptions()): Model {
        val bundle = Bundle.open(folder)
        if (options.verify) bundle.verify()
        val engine = choose(bundle, options.engine)
        return Model(bundle, engine, engine.open(bundle, options))
    }

    /** Why an engine cannot open a bundle here; null if it can. */
    @JvmStatic
    fun unavailable(engine: String, bundle: Bundle): String? = named(engine).unavailable(bundle)

    private fun choose(bundle: Bundle, name: String?): Engine {
        if (name != null) return named(name)
        val reasons = engines.map { it to it.unavailable(bundle) }
        return reasons.find { it.second == null }?.first
            ?: throw UnavailableException("${bundle.folder}: no engine can open it here (${reasons.joinToString("; ") { "${it.first.name}: ${it.second}" }})")
    }

    private fun named(name: String): Engine =
        engines.find { it.name == name } ?: throw UsageException("engine '$name': there is no such engine; there are ${engines.joinToString { it.name }}")
}
