package org.edgedec.engine

import java.io.ByteArrayInputStream
import java.io.ByteArrayOutputStream
import java.io.DataInputStream
import java.io.DataOutputStream
import java.io.File
import java.io.IOException
import java.security.MessageDigest
import org.edgedec.SessionException
import org.edgedec.decoding.Pcg64

/**
 * A saved text of the ONNX Runtime engine: magic, digest of the bundle, cache format, tokens, random
 * state, cache, sha256 of all before it.
 */
internal class OrtSaved(
    private val bundle: String,
    private val kv: String,
    val ids: IntArray,
    val prompt: Int,
    private val random: String,
    val cached: Int,
    val cache: ByteArray,
) {
    fun random(): Pcg64 = Pcg64.restored(random)

    fun write(file: File) {
        val bytes = ByteArrayOutputStream()
        DataOutputStream(bytes).use { out ->
            out.writeInt(MAGIC)
            out.writeUTF(bundle)
            out.writeUTF(kv)
            out.writeUTF(random)
            out.writeInt(prompt)
            out.writeInt(ids.size)
            ids.forEach(out::writeInt)
            out.writeInt(cached)
            out.writeInt(cache.size)
            out.write(cache)
        }
        val content = bytes.toByteArray()
        replace(file) { it.writeBytes(content + sha256(content)) }
    }

    companion object {
        private const val MAGIC = 0x45444f31
        private const val HASH = 32
        private const val LARGEST = 1L shl 30

        fun read(file: File, bundle: String, kv: String, capacity: Int, vocab: Int): OrtSaved {
            if (!file.isFile) throw SessionException("$file: no saved session there")
            if (file.length() !in HASH + 16..LARGEST) throw SessionException("$file: damaged; start a new session")
            val raw = org.edgedec.bundle.read(file)
            val content = raw.copyOf(raw.size - HASH)
            if (!sha256(content).contentEquals(raw.copyOfRange(raw.size - HASH, raw.size))) throw SessionException("$file: damaged; start a new session")
            val saved = try {
                parse(DataInputStream(ByteArrayInputStream(content)), file)
            } catch (e: IOException) {
                throw SessionException("$file: damaged; start a new session", e)
            } catch (e: IllegalArgumentException) {
                throw SessionException("$file: damaged; start a new session", e)
            }
            if (saved.bundle != bundle) throw SessionException("$file: saved from another model; open that one, or start anew")
            if (saved.kv != kv) throw SessionException("$file: saved with KV ${saved.kv}, this model has $kv; open it with the other")
            if (saved.ids.size > capacity) throw SessionException("$file: ${saved.ids.size} tokens do not fit into a context of $capacity")
            if (saved.ids.any { it !in 0 until vocab } || saved.prompt !in 0..saved.ids.size || saved.cached !in 0..saved.ids.size) throw SessionException("$file: damaged; start a new session")
            return saved
        }

        private fun parse(input: DataInputStream, file: File): OrtSaved {
            if (input.readInt() != MAGIC) throw SessionException("$file: no session of the ONNX Runtime engine; load it with the engine that saved it")
            val bundle = input.readUTF()
            val kv = input.readUTF()
            val random = input.readUTF()
            Pcg64.restored(random)
            val prompt = input.readInt()
            val n = input.readInt()
            if (n < 0 || n > input.available() / 4) throw IOException("length")
            val ids = IntArray(n) { input.readInt() }
            val cached = input.readInt()
            val size = input.readInt()
            if (size < 0 || size != input.available()) throw IOException("length")
            return OrtSaved(bundle, kv, ids, prompt, random, cached, ByteArray(size).also(input::readFully))
        }

        private fun sha256(content: ByteArray): ByteArray = MessageDigest.getInstance("SHA-256").digest(content)
    }
}

/** Writes a file under a temporary name, forces it to the disk, and renames it: whole or not at all. */
internal fun replace(file: File, write: (File) -> Unit) {
    val temporary = File.createTempFile(".${file.name}", ".part", file.absoluteFile.parentFile)
    try {
        write(temporary)
        java.io.RandomAccessFile(temporary, "rw").use { it.fd.sync() }
        if (!temporary.renameTo(file)) throw IOException("cannot be renamed")
    } catch (e: IOException) {
        throw org.edgedec.EdgedecException("$file: cannot be written: ${e.message}", e)
    } finally {
        temporary.delete()
    }
}
