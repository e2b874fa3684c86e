package org.edgedec

import java.io.ByteArrayInputStream
import java.io.ByteArrayOutputStream
import java.io.File
import java.io.IOException
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
