package org.edgedec

import java.io.File
import java.util.Random
import java.util.concurrent.TimeUnit
import org.edgedec.bundle.Bundle
import org.edgedec.bundle.Importer
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.Timeout
import org.junit.jupiter.api.io.TempDir

/** Imports nano again and again, until it is killed. */
object KilledImport {
    @JvmStatic
    fun main(arguments: Array<String>) {
        val folder = File(arguments[0])
        val importer = Importer(folder)
        println("begun")
        while (true) importer.copy("nano", { File(NANO.folder, it).inputStream() })
    }
}

class KilledImportTest {
    private val kills = Integer.getInteger("edgedec.kills", 8)

    @Test
    @Timeout(300, unit = TimeUnit.SECONDS)
    fun `a killed import leaves a whole bundle, or none`(@TempDir folder: File) {
        val random = Random(7)
        var parts = 0
        var seen = false
        repeat(kills) {
            kill(folder, random.nextInt(3000).toLong())
            val importer = Importer(folder)
            parts += folder.list()!!.count { it.startsWith(".part-") }
            importer.bundles().forEach { Bundle.open(it).verify() }
            importer.clean()
            assertEquals(emptySet<String>(), folder.list()!!.toSet() - "nano")
            assertTrue(!seen || importer.bundles().isNotEmpty(), "what was whole stays")
            seen = importer.bundles().isNotEmpty()
        }
        assertTrue(parts > 0, "some import was cut off")
        assertTrue(seen, "some import was finished")
    }

    private fun kill(folder: File, after: Long) {
        val classes = System.getProperty("surefire.test.class.path") ?: System.getProperty("java.class.path")
        val java = File(System.getProperty("java.home"), "bin/java").path
        val process = ProcessBuilder(java, "-cp", classes, "-Dedgedec.nano=${NANO.folder}", "org.edgedec.KilledImport", folder.path).start()
        check(process.inputStream.read() >= 0) { process.errorStream.bufferedReader().readText() }
        Thread.sleep(after)
        process.destroyForcibly().waitFor()
    }
}
