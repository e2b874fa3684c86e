package org.edgedec.bundle

import java.io.DataInputStream
import java.io.EOFException
import java.io.File
import java.io.InputStream
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.security.MessageDigest
import kotlinx.serialization.json.Json
import kotlinx.serialization.json.JsonArray
import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.longOrNull
import org.edgedec.CancelledException
import org.edgedec.CorruptException

/** A file of `edgedec pack` (docs/bundle-format.md#packed), read from its beginning to its end. */
internal class PackedInput(input: InputStream, private val what: String) {
    private class Place(val name: String, val offset: Long, val size: Long)

    private val data = DataInputStream(input)
    private val total: Long
    private val places: List<Place>
    private var at = HEADER.toLong()

    /** The sha256 of its manifest. */
    val manifest: String

    init {
        val head = ByteBuffer.wrap(bytes(HEADER)).order(ByteOrder.LITTLE_ENDIAN)
        val magic = ByteArray(MAGIC.size).also(head::get)
        if (!magic.contentEquals(MAGIC)) fail("is no file of `edgedec pack`")
        if (head.getInt() != VERSION) fail("is of another version; pack it again")
        head.getInt()
        val length = head.getLong()
        total = head.getLong()
        if (length !in 2..INDEX_LIMIT || total < HEADER + length) fail("has an index that cannot be; copy it again")
        val raw = bytes(length.toInt())
        val wanted = ByteArray(32).also(head::get)
        if (!MessageDigest.getInstance("SHA-256").digest(raw).contentEquals(wanted)) fail("is damaged (the hash of its index differs); copy it again")
        at += length
        val index = index(raw)
        manifest = (index["manifest"] as? JsonPrimitive)?.content ?: fail("has an index without a manifest; pack it again")
        places = (index["files"] as? JsonObject ?: fail("has an index without files; pack it again")).map { (name, place) -> place(name, place) }.sortedBy { it.offset }
    }

    private fun index(raw: ByteArray): JsonObject =
        try {
            Json.parseToJsonElement(raw.decodeToString(throwOnInvalidSequence = true)) as? JsonObject
        } catch (e: Exception) {
            throw CorruptException("$what: its index is no JSON: ${e.message?.lineSequence()?.first()}", e)
        } ?: fail("has an index that is no object; pack it again")

    private fun place(name: String, place: JsonElement): Place {
        Manifest.checkName(name, what)
        val numbers = (place as? JsonArray)?.map { (it as? JsonPrimitive)?.longOrNull ?: -1 }
        if (numbers?.size != 2 || numbers.any { it !in 0..total } || numbers.sum() > total) fail("has an index in which '$name' cannot be; pack it again")
        return Place(name, numbers[0], numbers[1])
    }

    /** Writes its files to a folder; the caller checks their hashes. */
    fun unpack(folder: File, progress: Progress) {
        for (place in places) {
            if (place.offset < at) fail("has files that overlap; pack it again")
            pass(place.offset - at) { _, _ -> }
            File(folder, place.name).outputStream().use { out ->
                pass(place.size) { buffer, n ->
                    out.write(buffer, 0, n)
                    if (!progress.at(minOf(at, total), total)) throw CancelledException("the import was stopped")
                }
            }
        }
        if (at != total || data.read() >= 0) fail("has another size than it says; copy it again")
    }

    private fun pass(size: Long, step: (ByteArray, Int) -> Unit) {
        val buffer = ByteArray(minOf(size, 1L shl 18).toInt())
        var left = size
        while (left > 0) {
            val n = data.read(buffer, 0, minOf(left, buffer.size.toLong()).toInt())
            if (n < 0) fail("is cut short; copy it again")
            left -= n
            at += n
            step(buffer, n)
        }
    }

    private fun bytes(n: Int): ByteArray =
        try {
            ByteArray(n).also(data::readFully)
        } catch (e: EOFException) {
            throw CorruptException("$what: is cut short; copy it again", e)
        }

    private fun fail(why: String): Nothing = throw CorruptException("$what: $why")

    companion object {
        val MAGIC = "EDGEPACK".toByteArray()
        private const val VERSION = 1
        private const val HEADER = 64
        private const val INDEX_LIMIT = 8L shl 20
    }
}
