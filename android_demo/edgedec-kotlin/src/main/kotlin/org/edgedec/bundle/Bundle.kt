package org.edgedec.bundle

import java.io.File
import java.io.IOException
import java.security.MessageDigest
import kotlinx.serialization.json.JsonObject
import org.edgedec.CorruptException
import org.edgedec.EdgedecException
import org.edgedec.NotFoundException
import org.edgedec.UnsafeException

/** Receives the bytes done and the total; false stops. */
fun interface Progress {
    fun at(done: Long, total: Long): Boolean
}

/** A bundle folder whose manifest was read and whose sizes were checked (docs/bundle-format.md). */
class Bundle private constructor(val folder: File, val manifest: Manifest, val digest: String) {
    val name: String get() = manifest.name

    /** The model's identity: a hash of the manifest as exported, without later additions to the bundle. */
    val origin: String get() = manifest.origin.ifEmpty { digest }

    /** The path of a file that the manifest lists. */
    fun file(name: String): File {
        if (name !in manifest.files) throw CorruptException("$folder: the manifest does not list '$name'; export it again")
        return File(folder, name)
    }

    /** Checks every file's sha256. */
    @JvmOverloads
    fun verify(progress: Progress = Progress { _, _ -> true }) {
        var done = 0L
        for ((name, facts) in manifest.files) {
            val found = sha256(File(folder, name)) { n ->
                done += n
                progress.at(done, manifest.bytes)
            }
            if (found != facts.sha256) throw CorruptException("${File(folder, name)}: its sha256 is not the manifest's; copy it again")
        }
    }

    companion object {
        const val MANIFEST = "edgedec.json"
        const val MANIFEST_LIMIT = 8L shl 20

        /** Reads the manifest of a folder and checks the size of every file. */
        @JvmStatic
        fun open(folder: File): Bundle {
            val path = File(folder, MANIFEST)
            if (!path.isFile) throw NotFoundException("$folder: no bundle there ($MANIFEST is missing)")
            if (path.length() > MANIFEST_LIMIT) throw CorruptException("$path: ${path.length()} bytes; at most $MANIFEST_LIMIT are read")
            val raw = read(path)
            val manifest = Manifest.parse(raw, path.path)
            manifest.files.forEach { (name, facts) -> checkFile(folder, name, facts.size) }
            return Bundle(folder, manifest, hex(MessageDigest.getInstance("SHA-256").digest(raw)))
        }

        private fun checkFile(folder: File, name: String, size: Long) {
            val file = File(folder, name)
            if (!file.isFile) throw CorruptException("$file: is missing; copy the bundle again")
            if (file.canonicalFile.parentFile != folder.canonicalFile) throw UnsafeException("$file: leads out of the bundle")
            if (file.length() != size) throw CorruptException("$file: ${file.length()} bytes, the manifest says $size; copy it again")
        }
    }
}

internal fun read(file: File): ByteArray =
    try {
        file.readBytes()
    } catch (e: IOException) {
        throw EdgedecException("$file: cannot be read: ${e.message}", e)
    }

/** The sha256 of a file in hex; [step] takes the bytes of each piece and returns false to stop. */
internal fun sha256(file: File, step: (Int) -> Boolean): String {
    val digest = MessageDigest.getInstance("SHA-256")
    file.inputStream().use { input ->
        val buffer = ByteArray(1 shl 20)
        while (true) {
            val n = input.read(buffer)
            if (n < 0) break
            digest.update(buffer, 0, n)
            if (!step(n)) throw org.edgedec.CancelledException("$file: checking was stopped")
        }
    }
    return hex(digest.digest())
}

internal fun hex(bytes: ByteArray): String = bytes.joinToString("") { "%02x".format(it) }
