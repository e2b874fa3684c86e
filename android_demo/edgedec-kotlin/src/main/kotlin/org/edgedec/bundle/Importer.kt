package org.edgedec.bundle

import java.io.BufferedInputStream
import java.io.File
import java.io.IOException
import java.io.InputStream
import java.security.MessageDigest
import java.util.zip.ZipInputStream
import org.edgedec.CancelledException
import org.edgedec.CorruptException
import org.edgedec.EdgedecException

/**
 * Copies bundles into a folder of the app: into a temporary folder first, every file against its size and sha256, then by one
 * rename. A bundle in the folder is always complete, even after an interruption.
 */
class Importer(private val into: File) {
    /** Opens a file of the source by name. */
    fun interface Source {
        @Throws(IOException::class)
        fun open(name: String): InputStream
    }

    /** The bundles that are there. */
    fun bundles(): List<File> = into.listFiles { file -> file.isDirectory && !file.name.startsWith(".") && File(file, Bundle.MANIFEST).isFile }.orEmpty().sortedBy { it.name }

    /**
     * Removes files of interrupted imports, and restores a bundle whose replacement was interrupted; call it
     * when no import runs.
     */
    fun clean() {
        for (file in into.listFiles { file -> file.name.startsWith(PART) }.orEmpty()) {
            val replaced = File(into, file.name.removePrefix(PART).removeSuffix(OLD))
            if (!file.name.endsWith(OLD) || replaced.exists() || !file.renameTo(replaced)) file.deleteRecursively()
        }
    }

    /** From a folder or the app's assets. [name]: of the folder that is made. A bundle of that name is replaced. */
    @JvmOverloads
    fun copy(name: String, source: Source, progress: Progress = Progress { _, _ -> true }): File = whole(name) { folder ->
        val raw = limited(source.open(Bundle.MANIFEST)) ?: throw CorruptException("$name: its ${Bundle.MANIFEST} is larger than ${Bundle.MANIFEST_LIMIT} bytes")
        val manifest = Manifest.parse(raw, "$name/${Bundle.MANIFEST}")
        checkRoom(manifest.bytes)
        File(folder, Bundle.MANIFEST).writeBytes(raw)
        var done = 0L
        for ((file, facts) in manifest.files) {
            source.open(file).use { input ->
                write(input, File(folder, file), facts, "$name/$file") { n ->
                    done += n
                    progress.at(done, manifest.bytes)
                }
            }
        }
    }

    /** From a zip file, whose bundle may lie in a folder of it. Files that the manifest does not list are refused. */
    @JvmOverloads
    fun unzip(name: String, input: InputStream, total: Long, progress: Progress = Progress { _, _ -> true }): File = whole(name) { folder ->
        val counted = Counted(input)
        ZipInputStream(counted).use { zip ->
            var bytes = 0L
            generateSequence { zip.nextEntry }.filter { !it.isDirectory }.forEach { entry ->
                val plain = entry.name.substringAfterLast('/')
                Manifest.checkName(plain, name)
                File(folder, plain).outputStream().use { out ->
                    pump(zip, out) { _, n ->
                        bytes += n
                        if (bytes > LARGEST_ZIP) throw CorruptException("$name: unpacks to more than $LARGEST_ZIP bytes")
                        progress.at(minOf(counted.done, total), total)
                    }
                }
            }
        }
        checked(folder, name)
    }

    /** From a file of `edgedec pack`. */
    @JvmOverloads
    fun unpack(name: String, input: InputStream, progress: Progress = Progress { _, _ -> true }): File = whole(name) { folder ->
        val packed = PackedInput(input, name)
        packed.unpack(folder, progress)
        val digest = checked(folder, name).digest
        if (digest != packed.manifest) throw CorruptException("$name: its manifest is not the one that was packed; copy it again")
    }

    /** From a zip file or a file of `edgedec pack`, as its first bytes say. [total]: how many there are. */
    @JvmOverloads
    fun read(name: String, input: InputStream, total: Long, progress: Progress = Progress { _, _ -> true }): File {
        val buffered = BufferedInputStream(input, 1 shl 18)
        buffered.mark(PackedInput.MAGIC.size)
        val packed = PackedInput.MAGIC.all { buffered.read() == it.toInt() }
        buffered.reset()
        return if (packed) unpack(name, buffered, progress) else unzip(name, buffered, total, progress)
    }

    /** Its files are those of its manifest, every hash is right. */
    private fun checked(folder: File, name: String): Bundle {
        val bundle = Bundle.open(folder)
        val extra = folder.list().orEmpty().toSet() - bundle.manifest.files.keys - Bundle.MANIFEST
        if (extra.isNotEmpty()) throw CorruptException("$name: '${extra.first()}' is not of the bundle; pack the bundle's own files only")
        bundle.verify()
        return bundle
    }

    private fun whole(name: String, fill: (File) -> Unit): File {
        Manifest.checkName(name, "import")
        into.mkdirs()
        val part = File(into, "$PART$name.${System.nanoTime()}")
        if (!part.mkdirs()) throw EdgedecException("$part: cannot be made; is there room?")
        try {
            fill(part)
            part.listFiles().orEmpty().forEach { file -> java.io.RandomAccessFile(file, "rw").use { it.fd.sync() } }
            return rename(part, File(into, name))
        } catch (e: IOException) {
            throw EdgedecException("$name: cannot be copied: ${e.message}", e)
        } finally {
            part.deleteRecursively()
        }
    }

    /** A bundle of the same name is moved away first; [clean] puts it back if the program ends in between. */
    private fun rename(part: File, target: File): File {
        val old = File(into, "$PART${target.name}$OLD")
        old.deleteRecursively()
        if (target.exists() && !target.renameTo(old)) throw EdgedecException("$target: cannot be replaced")
        if (!part.renameTo(target)) {
            old.renameTo(target)
            throw EdgedecException("$target: cannot be made")
        }
        old.deleteRecursively()
        return target
    }

    private fun checkRoom(bytes: Long) {
        if (into.usableSpace in 1 until bytes) throw EdgedecException("$into: ${into.usableSpace} bytes free, the bundle needs $bytes; make room")
    }

    private fun limited(input: InputStream): ByteArray? = input.use {
        val out = java.io.ByteArrayOutputStream()
        var whole = true
        pump(it, out) { _, _ -> (out.size() <= Bundle.MANIFEST_LIMIT).also { within -> whole = within } || throw CorruptException("the manifest is larger than ${Bundle.MANIFEST_LIMIT} bytes") }
        if (whole) out.toByteArray() else null
    }

    private fun write(input: InputStream, file: File, facts: FileFacts, what: String, step: (Int) -> Boolean) {
        val digest = MessageDigest.getInstance("SHA-256")
        var size = 0L
        file.outputStream().use { out ->
            pump(input, out) { buffer, n ->
                digest.update(buffer, 0, n)
                size += n
                if (size > facts.size) throw CorruptException("$what: is longer than the manifest says; copy it again")
                step(n)
            }
        }
        if (size != facts.size || hex(digest.digest()) != facts.sha256) throw CorruptException("$what: its sha256 is not the manifest's; copy it again")
    }

    private fun pump(input: InputStream, out: java.io.OutputStream, step: (ByteArray, Int) -> Boolean) {
        val buffer = ByteArray(1 shl 18)
        while (true) {
            val n = input.read(buffer)
            if (n < 0) return
            out.write(buffer, 0, n)
            if (!step(buffer, n)) throw CancelledException("the import was stopped")
        }
    }

    private class Counted(private val input: InputStream) : InputStream() {
        var done = 0L

        override fun read(): Int = input.read().also { if (it >= 0) done++ }

        override fun read(b: ByteArray, off: Int, len: Int): Int = input.read(b, off, len).also { if (it > 0) done += it }

        override fun close() = input.close()
    }

    private companion object {
        const val PART = ".part-"
        const val OLD = ".old"
        const val LARGEST_ZIP = 64L shl 30
    }
}
