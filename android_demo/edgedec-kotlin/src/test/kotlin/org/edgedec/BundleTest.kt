package org.edgedec

import java.io.ByteArrayInputStream
import java.io.ByteArrayOutputStream
import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.security.MessageDigest
import java.util.Random
import java.util.zip.ZipEntry
import java.util.zip.ZipOutputStream
import org.edgedec.bundle.Bundle
import org.edgedec.bundle.Importer
import org.edgedec.bundle.Manifest
import org.edgedec.bundle.Progress
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

class BundleTest {
    @TempDir lateinit var folder: File

    private fun source(name: String) = File(NANO.folder, name).inputStream()

    @Test
    fun `nano is whole`() {
        val bundle = Bundle.open(NANO.folder)
        bundle.verify()
        assertEquals("nano", bundle.name)
        assertEquals(14, bundle.manifest.attention.size)
        assertEquals(1024, bundle.manifest.contextLength)
        assertEquals(listOf("f32", "int8"), bundle.manifest.kvFormats)
    }

    @Test
    fun `a bundle is copied with its hashes, and replaced`() {
        val importer = Importer(folder)
        val seen = ArrayList<Long>()
        repeat(2) {
            val made = importer.copy("mine", ::source, Progress { done, total -> seen.add(done * 100 / total) })
            Bundle.open(made).verify()
        }
        assertEquals(listOf("mine"), folder.list()!!.toList())
        assertEquals(100, seen.last())
        assertTrue(seen.size > 20)
        assertEquals(listOf(File(folder, "mine")), importer.bundles())
    }

    @Test
    fun `a bundle in a zip file`() {
        val zip = zip()
        val made = Importer(folder).unzip("zipped", ByteArrayInputStream(zip), zip.size.toLong())
        Bundle.open(made).verify()
    }

    private fun zip(extra: String? = null): ByteArray = ByteArrayOutputStream().also { out ->
        ZipOutputStream(out).use { zip ->
            val names = Bundle.open(NANO.folder).manifest.files.keys + Bundle.MANIFEST
            for (name in names) {
                zip.putNextEntry(ZipEntry("nano/$name"))
                source(name).copyTo(zip)
            }
            if (extra != null) zip.putNextEntry(ZipEntry(extra))
        }
    }.toByteArray()

    /** Nano as `edgedec pack` writes it; [index] changes the text of the index. */
    private fun packed(index: (String) -> String = { it }): ByteArray {
        val bundle = Bundle.open(NANO.folder)
        val names = bundle.manifest.files.keys + Bundle.MANIFEST
        val places = LinkedHashMap<String, Long>()
        var end = 64L + 4096
        for (name in names) {
            end = (end + 16383) / 16384 * 16384
            places[name] = end
            end += File(NANO.folder, name).length()
        }
        val files = places.entries.joinToString { (name, at) -> "\"$name\": [$at, ${File(NANO.folder, name).length()}]" }
        val text = index("{\"manifest\": \"${bundle.digest}\", \"files\": {$files}}").padEnd(4096).toByteArray()
        val out = ByteBuffer.allocate(end.toInt()).order(ByteOrder.LITTLE_ENDIAN)
        out.put("EDGEPACK".toByteArray()).putInt(1).putInt(0).putLong(text.size.toLong()).putLong(end)
        out.put(MessageDigest.getInstance("SHA-256").digest(text)).put(text)
        for ((name, at) in places) {
            out.position(at.toInt())
            out.put(File(NANO.folder, name).readBytes())
        }
        return out.array()
    }

    @Test
    fun `a bundle in one file`() {
        val raw = File(System.getProperty("edgedec.packed").orEmpty()).takeIf { it.isFile }?.readBytes() ?: packed()
        var last = 0L
        val made = Importer(folder).read("one", ByteArrayInputStream(raw), raw.size.toLong(), Progress { done, total -> (done <= total).also { last = done } })
        assertEquals(raw.size.toLong(), last)
        assertEquals(Bundle.open(NANO.folder).digest, Bundle.open(made).digest)
        Bundle.open(made).verify()
        val zip = zip()
        Bundle.open(Importer(folder).read("two", ByteArrayInputStream(zip), zip.size.toLong())).verify()
    }

    @Test
    fun `a damaged file of a bundle leaves nothing`() {
        val whole = packed()
        val forged = listOf<(String) -> String>(
            { it.replace("\"tokenizer.json\"", "\"../tokenizer.json\"") },
            { it.replace("[", "[-") },
            { it.replace("[", "[9") },
            { it.replace("\"manifest\"", "\"other\"") },
            { it.replace("\"manifest\": \"", "\"manifest\": \"0") },
            { "[" }, { "{}" }, { "\"files\"" },
        ).map { packed(it) }
        val cut = listOf(0, 7, 63, 64, 5000, whole.size - 1).map { whole.copyOf(it) }
        val changed = listOf(0, 8, 20, 28, 40, 70, whole.size - 9).map { at -> whole.copyOf().also { it[at] = (it[at] + 1).toByte() } }
        for ((i, raw) in (forged + cut + changed).withIndex()) {
            val refused = assertThrows(EdgedecException::class.java, { Importer(folder).unpack("a", ByteArrayInputStream(raw)) }, "$i")
            assertTrue('\n' !in refused.message!!)
        }
        assertThrows(CancelledException::class.java) { Importer(folder).unpack("a", ByteArrayInputStream(whole), Progress { done, _ -> done < 100_000 }) }
        assertEquals(emptyList<String>(), folder.list()!!.toList())
    }

    @Test
    fun `what is damaged or reaches out leaves nothing`() {
        val importer = Importer(folder)
        fun damaged(name: String) = if (name == "weights.bin") File(NANO.folder, name).readBytes().also { it[99]++ }.inputStream() else source(name)
        fun longer(name: String) = if (name == "head.onnx") (File(NANO.folder, name).readBytes() + 1).inputStream() else source(name)
        fun broken(name: String) = if (name == "tokenizer.json") throw IOException("unplugged") else source(name)
        assertThrows(CorruptException::class.java) { importer.copy("a", ::damaged) }
        assertThrows(CorruptException::class.java) { importer.copy("a", ::longer) }
        assertThrows(EdgedecException::class.java) { importer.copy("a", ::broken) }
        assertThrows(CancelledException::class.java) { importer.copy("a", ::source, Progress { done, _ -> done < 100_000 }) }
        assertThrows(UnsafeException::class.java) { importer.copy("../a", ::source) }
        for (extra in listOf("nano/extra.bin", "nano/..", "nano/.hidden")) {
            val zip = zip(extra)
            assertThrows(EdgedecException::class.java) { importer.unzip("a", ByteArrayInputStream(zip), zip.size.toLong()) }
        }
        val cut = zip().let { it.copyOf(it.size / 2) }
        assertThrows(EdgedecException::class.java) { importer.unzip("a", ByteArrayInputStream(cut), cut.size.toLong()) }
        assertEquals(emptyList<String>(), folder.list()!!.toList())
    }

    @Test
    fun `what a killed import left is removed and never listed`() {
        File(folder, ".part-x.1/sub").mkdirs()
        File(folder, ".part-x.1/${Bundle.MANIFEST}").writeText("{}")
        val importer = Importer(folder)
        assertEquals(emptyList<File>(), importer.bundles())
        importer.clean()
        assertEquals(emptyList<String>(), folder.list()!!.toList())
    }

    @Test
    fun `a bundle that was just being replaced is put back`() {
        val importer = Importer(folder)
        val made = importer.copy("mine", ::source)
        made.renameTo(File(folder, ".part-mine.old"))
        File(folder, ".part-mine.77").mkdirs()
        importer.clean()
        assertEquals(listOf("mine"), folder.list()!!.toList())
        Bundle.open(made).verify()
    }

    @Test
    fun `a forged manifest is refused`() {
        val raw = File(NANO.folder, Bundle.MANIFEST).readText()
        fun error(text: String) = assertThrows(EdgedecException::class.java, { Manifest.parse(text.toByteArray(), "m") }, text.take(40)).message!!
        assertTrue("version" in error(raw.replace("\"version\": 4", "\"version\": 9").replace("\"version\":4", "\"version\":9")))
        assertTrue("plain" in error(raw.replace("embed.onnx", "../embed.onnx")))
        for (text in listOf("", "[]", "{}", raw.take(raw.length / 2), "[".repeat(200_000))) assertTrue('\n' !in error(text))
        val small = folder.resolve("b").also { it.mkdirs() }
        File(small, Bundle.MANIFEST).writeText(raw)
        assertTrue("missing" in assertThrows(CorruptException::class.java) { Bundle.open(small) }.message!!)
        assertThrows(NotFoundException::class.java) { Bundle.open(folder) }
    }

    @Test
    fun `damaged bytes in a manifest never do more than throw`() {
        val raw = File(NANO.folder, Bundle.MANIFEST).readBytes()
        val random = Random(1)
        var refused = 0
        repeat(400) {
            val forged = raw.copyOf()
            repeat(1 + random.nextInt(4)) { forged[random.nextInt(forged.size)] = random.nextInt(256).toByte() }
            try {
                Manifest.parse(forged, "m")
            } catch (e: EdgedecException) {
                refused++
            }
        }
        assertTrue(refused > 50, "$refused were refused")
    }

    @Test
    fun `an engine that is not there says why`() {
        assertTrue("no such engine" in assertThrows(UsageException::class.java) { Edgedec.open(NANO.folder, OpenOptions(engine = "npu")) }.message!!)
        assertThrows(UsageException::class.java) { OpenOptions(threads = -1) }
        assertThrows(UnavailableException::class.java) { NANO.open("ort", kv = "int4") }
    }
}
