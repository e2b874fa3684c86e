package org.edgedec.engine

import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtSession
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.contentOrNull
import org.edgedec.CorruptException
import org.edgedec.Drafts
import org.edgedec.OpenOptions
import org.edgedec.UnavailableException
import org.edgedec.bundle.Bundle

/** ONNX Runtime's Java API over a bundle's graphs (the artifact `ort`), for devices without the native engine. */
object OrtEngine : Engine {
    override val name = "ort"
    private val KINDS = setOf("attention", "mlp", "moe")

    override fun unavailable(bundle: Bundle): String? {
        val lacking = bundle.manifest.kinds - KINDS
        return when {
            lacking.isNotEmpty() -> "blocks of the kind '${lacking.first()}' are not run through ONNX Runtime here"
            bundle.manifest.originalLength > 0 ->
                "texts of more than ${bundle.manifest.originalLength} tokens have other ropes, which the native engine runs"
            ARTIFACT !in bundle.manifest.artifacts -> "the bundle has no ONNX graphs; add them with `edgedec add ort`"
            else -> libraryMissing
        }
    }

    override fun open(bundle: Bundle, options: OpenOptions): EngineModel {
        unavailable(bundle)?.let { throw UnavailableException("${bundle.folder}: $it") }
        val kv = options.kv ?: bundle.manifest.kvFormats.first()
        return OrtModel(bundle, Graphs.of(bundle, kv), KvFormat.of(kv), options.threads.takeIf { it > 0 } ?: threads(bundle))
    }

    /** Why ONNX Runtime's own library cannot be loaded; null if it can. */
    private val libraryMissing: String? by lazy {
        try {
            OrtEnvironment.getEnvironment()
            null
        } catch (e: Throwable) { // a missing library is an Error
            "ONNX Runtime's native library is not in this app: ${e.message?.lineSequence()?.first()}"
        }
    }

    /** At most as many threads as the weights justify: below this size another thread costs more than it saves. */
    private fun threads(bundle: Bundle): Int {
        val work = bundle.manifest.files["weights.bin"]?.size ?: 0
        return minOf(Runtime.getRuntime().availableProcessors(), maxOf(1, (work / BYTES_PER_THREAD).toInt()))
    }

    internal const val ARTIFACT = "ort"
    private const val BYTES_PER_THREAD = 16L shl 20
}

/** The graph files of a bundle for one cache format. */
internal class Graphs(val embed: String, val stack: String, val head: String) {
    companion object {
        fun of(bundle: Bundle, kv: String): Graphs {
            val where = "${bundle.folder}: artifacts.${OrtEngine.ARTIFACT}.facts"
            val facts = bundle.manifest.artifacts.getValue(OrtEngine.ARTIFACT)["facts"] as? JsonObject ?: throw CorruptException("$where: missing")
            fun text(o: JsonObject, key: String) = (o[key] as? JsonPrimitive)?.contentOrNull
            val stacks = facts["stack"] as? JsonObject ?: throw CorruptException("$where.stack: missing")
            val stack = text(stacks, kv) ?: throw UnavailableException(
                "${bundle.folder}: no ONNX graphs for KV $kv, only ${stacks.keys}; add them with `edgedec add ort --kv $kv`",
            )
            fun named(key: String) = text(facts, key) ?: throw CorruptException("$where.$key: missing")
            return Graphs(named("embed"), stack, named("head")).also { g -> listOf(g.embed, g.stack, g.head).forEach(bundle::file) }
        }
    }
}

/** Sessions over the graphs; opened at first use, closed by [trim] and opened again. */
internal class OrtModel(val bundle: Bundle, private val graphs: Graphs, val format: KvFormat, override val threads: Int) : EngineModel {
    private val open = HashMap<String, OrtSession>()
    private var closed = false

    override val kv: String get() = format.name
    override val device: String get() = "ONNX Runtime ${environment.version}"

    val environment: OrtEnvironment = OrtEnvironment.getEnvironment()

    /** Every call holds this lock, so that no session is closed while it runs. */
    val lock = Any()

    fun embed() = session(graphs.embed)

    fun stack() = session(graphs.stack)

    fun head() = session(graphs.head)

    override fun text(context: Int, drafts: Drafts): EngineText {
        val limit = bundle.manifest.contextLength
        if (context > limit) throw org.edgedec.UsageException("context $context: the model's limit is $limit")
        return OrtText(this, if (context == 0) limit else context, drafts)
    }

    override fun trim() = synchronized(lock) {
        open.values.forEach(OrtSession::close)
        open.clear()
    }

    override fun close() = synchronized(lock) {
        closed = true
        trim()
    }

    private fun session(name: String): OrtSession {
        if (closed) throw UnavailableException("${bundle.folder}: the model is closed; open it again")
        return open.getOrPut(name) {
            try {
                OrtSession.SessionOptions().use { options ->
                    options.setIntraOpNumThreads(threads)
                    options.addConfigEntry("session.intra_op.spin_duration_us", "100")
                    options.setCPUArenaAllocator(false)
                    options.setMemoryPatternOptimization(false)
                    if (OldGraph.isOld(environment.version)) openOld(name, options) else environment.createSession(bundle.file(name).path, options)
                }
            } catch (e: OrtException) {
                throw CorruptException("${bundle.file(name)}: ONNX Runtime cannot open it: ${e.message?.lineSequence()?.first()}", e)
            } catch (e: IndexOutOfBoundsException) {
                throw CorruptException("${bundle.file(name)}: not an ONNX graph; copy it again", e)
            }
        }
    }

    /** From memory, the weights from the bundle's folder. */
    private fun openOld(name: String, options: OrtSession.SessionOptions): OrtSession {
        options.addConfigEntry("session.model_external_initializers_file_folder_path", bundle.folder.path)
        return environment.createSession(OldGraph.withoutCausal(org.edgedec.bundle.read(bundle.file(name))), options)
    }
}
