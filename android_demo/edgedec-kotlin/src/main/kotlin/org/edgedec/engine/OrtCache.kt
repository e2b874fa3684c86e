package org.edgedec.engine

import ai.onnxruntime.OnnxJavaType
import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import java.nio.ByteBuffer
import java.nio.ByteOrder
import org.edgedec.UnavailableException
import org.edgedec.bundle.Attention

/** How keys and values lie in memory: bytes of a number, and numbers in a byte of int4. */
internal enum class KvFormat(val type: OnnxJavaType, private val bytes: Int, private val packed: Int) {
    f32(OnnxJavaType.FLOAT, 4, 1),
    f16(OnnxJavaType.FLOAT16, 2, 1),
    int8(OnnxJavaType.INT8, 1, 1),
    int4(OnnxJavaType.UINT8, 1, 2);

    /** The last dimension of an array of `dim` channels. */
    fun width(dim: Int): Int = dim / packed

    fun rowBytes(dim: Int): Int = width(dim) * bytes

    companion object {
        fun of(name: String): KvFormat =
            values().find { it.name == name } ?: throw UnavailableException("KV $name: no such cache format; there are ${values().toList()}")
    }
}

/**
 * Keys and values of all attention blocks, [1, kv_heads, capacity, width] each, in memory that the graphs read and write in
 * place. Grows by doubling, so that a short text in a long context costs little.
 */
internal class OrtCache(private val environment: OrtEnvironment, private val blocks: List<Attention>, private val format: KvFormat) : AutoCloseable {
    var capacity = 0
        private set

    /** By the names of the graphs' inputs; the outputs of the same arrays are `present`. */
    val past = LinkedHashMap<String, OnnxTensor>()
    val present = LinkedHashMap<String, OnnxTensor>()
    private val buffers = ArrayList<ByteBuffer>()

    /** Makes room for `slots`, and keeps the first `used`. */
    fun reserve(slots: Int, used: Int, limit: Int) {
        if (slots <= capacity) return
        val before = ArrayList(buffers)
        val old = capacity
        capacity = minOf(maxOf(slots, capacity * 2, FIRST), limit)
        close()
        blocks.forEachIndexed { i, block -> listOf("key", "value").forEachIndexed { part, name -> add(i, name, block, before.getOrNull(2 * i + part), old, used) } }
    }

    private fun add(i: Int, part: String, block: Attention, before: ByteBuffer?, old: Int, used: Int) {
        val row = format.rowBytes(block.headDim)
        val buffer = ByteBuffer.allocateDirect(block.kvHeads * capacity * row).order(ByteOrder.nativeOrder())
        if (before != null) for (head in 0 until block.kvHeads) {
            copy(before, head * old * row, buffer, head * capacity * row, used * row)
        }
        val shape = longArrayOf(1, block.kvHeads.toLong(), capacity.toLong(), format.width(block.headDim).toLong())
        val tensor = OnnxTensor.createTensor(environment, buffer, shape, format.type)
        buffers.add(buffer)
        past["past_key_values.$i.$part"] = tensor
        present["present.$i.$part"] = tensor
    }

    private fun copy(from: ByteBuffer, at: Int, to: ByteBuffer, start: Int, bytes: Int) {
        val source = from.duplicate()
        source.position(at).limit(at + bytes)
        val target = to.duplicate()
        target.position(start)
        target.put(source)
    }

    /** The first `used` slots of every array, one after another. */
    fun saved(used: Int): ByteArray {
        val out = ByteBuffer.allocate(blocks.sumOf { 2 * it.kvHeads * used * format.rowBytes(it.headDim) })
        eachHead(used) { buffer, at, bytes ->
            val source = buffer.duplicate()
            source.position(at).limit(at + bytes)
            out.put(source)
        }
        return out.array()
    }

    /** Takes what [saved] returned; false if it is not of this size. */
    fun restore(data: ByteArray, used: Int, limit: Int): Boolean {
        if (data.size.toLong() != blocks.sumOf { 2L * it.kvHeads * used * format.rowBytes(it.headDim) }) return false
        reserve(used, 0, limit)
        var from = 0
        eachHead(used) { buffer, at, bytes ->
            val target = buffer.duplicate()
            target.position(at)
            target.put(data, from, bytes)
            from += bytes
        }
        return true
    }

    private fun eachHead(used: Int, run: (ByteBuffer, Int, Int) -> Unit) {
        buffers.forEachIndexed { i, buffer ->
            val row = format.rowBytes(blocks[i / 2].headDim)
            for (head in 0 until blocks[i / 2].kvHeads) run(buffer, head * capacity * row, used * row)
        }
    }

    override fun close() {
        past.values.forEach(OnnxTensor::close)
        past.clear()
        present.clear()
        buffers.clear()
    }

    private companion object {
        const val FIRST = 256
    }
}
