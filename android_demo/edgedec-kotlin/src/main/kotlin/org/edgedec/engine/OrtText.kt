package org.edgedec.engine

import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OnnxValue
import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtSession
import java.nio.FloatBuffer
import java.nio.IntBuffer
import java.nio.LongBuffer
import org.edgedec.CorruptException
import org.edgedec.bundle.Attention

/** Forward calls of one text: tokens -> logits, through embedding, stack and head. */
internal class OrtForward(private val model: OrtModel) : AutoCloseable {
    private val spec = model.bundle.manifest
    private val cache = OrtCache(model.environment, spec.attention, model.format)
    private val windows = spec.attention.map { it.window to it.sinks }.distinct()

    /**
     * Runs tokens at slots [start] on; logits [rows, vocab] of the last [wanted] of them. Slots before [start] stay, those
     * after it are written over.
     */
    fun run(tokens: IntArray, start: Int, wanted: Int, limit: Int): Array<FloatArray> = synchronized(model.lock) {
        cache.reserve(start + tokens.size, start, limit)
        try {
            val hidden = stack(tokens, start)
            if (wanted == 0) emptyArray() else head(hidden, tokens.size, wanted)
        } catch (e: OrtException) {
            throw CorruptException("${model.bundle.folder}: ONNX Runtime cannot run it: ${e.message?.lineSequence()?.first()}", e)
        }
    }

    private fun stack(tokens: IntArray, start: Int): FloatBuffer {
        val rows = tokens.size
        val ids = tensor(LongArray(rows) { tokens[it].toLong() }, 1, rows)
        val embedded = ids.use { model.embed().run(mapOf("input_ids" to it)) }
        return embedded.use { result ->
            val inputs = LinkedHashMap<String, OnnxTensor>()
            inputs["seqlens_k"] = OnnxTensor.createTensor(model.environment, IntBuffer.wrap(intArrayOf(start + rows - 1)), longArrayOf(1))
            inputs["total_sequence_length"] = OnnxTensor.createTensor(model.environment, IntBuffer.wrap(intArrayOf(start + rows)), longArrayOf())
            inputs["position_ids"] = tensor(LongArray(rows) { (start + it).toLong() }, 1, rows)
            windows.forEachIndexed { j, (window, sinks) -> inputs["attention_bias.$j"] = bias(start, rows, window, sinks) }
            val own = ArrayList(inputs.values)
            inputs["hidden"] = result.get(0) as OnnxTensor
            try {
                run(model.stack(), inputs + cache.past)
            } finally {
                own.forEach(OnnxTensor::close)
            }
        }
    }

    /** The output hidden states; keys and values are written in place. */
    private fun run(session: OrtSession, inputs: Map<String, OnnxTensor>): FloatBuffer {
        val wanted = inputs.filterKeys { it in session.inputNames }
        val pinned: Map<String, OnnxValue> = cache.present
        return session.run(wanted, setOf("hidden_out"), pinned).use { (it.get("hidden_out").get() as OnnxTensor).floatBuffer }
    }

    private fun head(hidden: FloatBuffer, rows: Int, wanted: Int): Array<FloatArray> {
        val width = spec.hiddenSize
        hidden.position((rows - wanted) * width)
        val input = OnnxTensor.createTensor(model.environment, hidden.slice(), longArrayOf(1, wanted.toLong(), width.toLong()))
        return input.use { model.head().run(mapOf("hidden" to it)) }.use { result ->
            val logits = (result.get(0) as OnnxTensor).floatBuffer
            Array(wanted) { FloatArray(spec.vocabSize).also(logits::get) }
        }
    }

    /** [1, 1, rows, start + rows]: 0 where a row looks, -1e9 elsewhere. */
    private fun bias(start: Int, rows: Int, window: Int?, sinks: Int): OnnxTensor {
        val total = start + rows
        val values = FloatBuffer.allocate(rows * total)
        for (row in 0 until rows) for (slot in 0 until total) {
            val at = start + row
            val sees = slot <= at && (window == null || slot > at - window || slot < sinks)
            values.put(row * total + slot, if (sees) 0f else MASKED)
        }
        return OnnxTensor.createTensor(model.environment, values, longArrayOf(1, 1, rows.toLong(), total.toLong()))
    }

    private fun tensor(values: LongArray, vararg shape: Int): OnnxTensor =
        OnnxTensor.createTensor(model.environment, LongBuffer.wrap(values), LongArray(shape.size) { shape[it].toLong() })

    /** Keys and values of the first `used` tokens. */
    fun saved(used: Int): ByteArray = synchronized(model.lock) { cache.saved(used) }

    /** False if they are not of this model and cache format. */
    fun restore(data: ByteArray, used: Int, limit: Int): Boolean = synchronized(model.lock) { cache.restore(data, used, limit) }

    override fun close() = synchronized(model.lock) { cache.close() }

    private companion object {
        const val MASKED = -1e9f
    }
}
