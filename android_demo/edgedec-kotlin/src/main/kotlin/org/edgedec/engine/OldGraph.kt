package org.edgedec.engine

import java.io.ByteArrayOutputStream

/**
 * Graphs for ONNX Runtime before 1.31, whose attention has no attribute `causal` and always is: without the attribute, that
 * is the same for a chain of tokens, which is all that this library runs. Rewrites the few levels of the protobuf that lead
 * there and copies everything else.
 */
internal object OldGraph {
    private const val GRAPH = 7
    private const val NODE = 1
    private const val ATTRIBUTE = 5
    private const val NAME = 1

    fun isOld(version: String): Boolean {
        val (major, minor) = version.split(".", "-").take(2).map { it.toIntOrNull() ?: return false }
        return major == 1 && minor < 31
    }

    fun withoutCausal(model: ByteArray): ByteArray =
        rewrite(model, GRAPH) { graph -> rewrite(graph, NODE) { node -> rewrite(node, ATTRIBUTE) { if (name(it) == "causal") null else it } } }

    private fun name(attribute: ByteArray): String? {
        var found: String? = null
        rewrite(attribute, NAME) { it.also { raw -> found = raw.decodeToString() } }
        return found
    }

    /** A message whose fields of this number are replaced, or dropped where `change` gives null. */
    private fun rewrite(message: ByteArray, number: Int, change: (ByteArray) -> ByteArray?): ByteArray {
        val out = ByteArrayOutputStream(message.size)
        var at = 0
        fun varint(): Long {
            var value = 0L
            for (shift in 0 until 64 step 7) {
                val b = message[at++].toLong()
                value = value or ((b and 0x7f) shl shift)
                if (b >= 0) return value
            }
            throw IndexOutOfBoundsException("a number without an end")
        }
        while (at < message.size) {
            val start = at
            val key = varint()
            when ((key and 7).toInt()) {
                0 -> varint()
                1 -> at += 8
                5 -> at += 4
                2 -> {
                    val size = varint().toInt()
                    val content = message.copyOfRange(at, Math.addExact(at, size))
                    at += size
                    if ((key ushr 3).toInt() == number) {
                        val changed = change(content) ?: continue
                        write(out, key, changed)
                        continue
                    }
                }
                else -> throw IndexOutOfBoundsException("a field of an unknown kind")
            }
            out.write(message, start, at - start)
        }
        return out.toByteArray()
    }

    private fun write(out: ByteArrayOutputStream, key: Long, content: ByteArray) {
        varint(out, key)
        varint(out, content.size.toLong())
        out.write(content)
    }

    private fun varint(out: ByteArrayOutputStream, value: Long) {
        var rest = value
        while (rest and 0x7fL.inv() != 0L) {
            out.write((rest.toInt() and 0x7f) or 0x80)
            rest = rest ushr 7
        }
        out.write(rest.toInt())
    }
}
