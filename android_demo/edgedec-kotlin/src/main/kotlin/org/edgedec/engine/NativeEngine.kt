package org.edgedec.engine

import java.io.File
import org.edgedec.Drafts
import org.edgedec.Finish
import org.edgedec.GenerateOptions
import org.edgedec.OpenOptions
import org.edgedec.Stats
import org.edgedec.UnavailableException
import org.edgedec.UsageException
import org.edgedec.bundle.Bundle

/** libedgedec: the C++ engine that Python uses too, with the same tokens. */
object NativeEngine : Engine {
    override val name = "native"

    override fun unavailable(bundle: Bundle): String? = NativeLibrary.missing

    override fun open(bundle: Bundle, options: OpenOptions): EngineModel {
        unavailable(bundle)?.let { throw UnavailableException("${bundle.folder}: $it") }
        return NativeModel(NativeLibrary.open(bundle.folder.path, options.threads, options.kv, options.bigCores), bundle.folder)
    }
}

/** A number that stands for an object of the library, until it is closed. */
private class Handle(private var address: Long, private val what: String) {
    @Synchronized
    fun <T> use(run: (Long) -> T): T {
        if (address == 0L) throw UsageException("the $what is closed; open it again")
        return run(address)
    }

    val get: Long
        get() = address.also { if (it == 0L) throw UsageException("the $what is closed; open it again") }

    @Synchronized
    fun ifOpen(run: (Long) -> Unit) {
        if (address != 0L) run(address)
    }

    @Synchronized
    fun close(free: (Long) -> Unit) {
        if (address != 0L) free(address)
        address = 0L
    }
}

private class NativeModel(address: Long, private val folder: File) : EngineModel {
    private val handle = Handle(address, "model")
    override val threads: Int = NativeLibrary.threads(address)
    override val kv: String = NativeLibrary.modelString(address, 2)
    override val device: String = NativeLibrary.modelString(address, 3)

    override fun text(context: Int, drafts: Drafts): EngineText = handle.use { NativeText(NativeLibrary.newSession(it, context, drafts.drafters)) }

    override fun trim() = handle.use(NativeLibrary::trim)

    override fun close() = handle.close(NativeLibrary::close)
}

private class NativeText(address: Long) : EngineText {
    private val handle = Handle(address, "session")
    override val capacity: Int = NativeLibrary.context(address)

    override val length: Int get() = NativeLibrary.length(handle.get)

    override fun tokens(): IntArray = NativeLibrary.tokens(handle.get)

    override fun generate(prompt: IntArray?, options: GenerateOptions, sink: TokenSink): Stats {
        val s = options.sampling
        val bias = s.logitBias.toSortedMap()
        val ints = intArrayOf(options.maxTokens ?: -1, options.minTokens, if (options.ignoreEos) 1 else 0, s.topK, if (s.seed == null) 0 else 1)
        val reals = doubleArrayOf(s.temperature, s.topP, s.minP, s.typicalP, s.repetitionPenalty, s.presencePenalty, s.frequencyPenalty)
        val out = NativeLibrary.generate(
            handle.get, prompt, ints, reals, s.seed ?: 0L, options.stopTokens.toIntArray(), bias.keys.toIntArray(), bias.values.toFloatArray(), sink,
        )
        val counts = LongArray(out.size) { out[it].toLong() }
        return Stats(
            finish(counts[0].toInt()), counts[1].toInt(), counts[2].toInt(), counts[3].toInt(), counts[4].toInt(), counts[5].toInt(), counts[6].toInt(), out[7], out[8],
        )
    }

    private fun finish(code: Int): Finish = when (code) {
        1 -> Finish.EOS
        2 -> Finish.STOP
        3 -> Finish.LENGTH
        4 -> Finish.CONTEXT
        else -> Finish.STOPPED
    }

    override fun truncate(length: Int) = NativeLibrary.truncate(handle.get, length)

    override fun cancel() = handle.ifOpen(NativeLibrary::cancel)

    override fun fork(): EngineText = NativeText(NativeLibrary.fork(handle.get))

    override fun save(file: File) = NativeLibrary.save(handle.get, file.path)

    override fun load(file: File) = NativeLibrary.load(handle.get, file.path)

    override fun close() = handle.close(NativeLibrary::free)
}
