package org.edgedec.demo

import android.net.Uri
import java.io.IOException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import org.edgedec.EdgedecException
import org.edgedec.bundle.Progress

/**
 * Brings a bundle in a zip file, or in one of `edgedec pack`, into the app; every file is checked against
 * its hash, and a notification shows the progress.
 */
class Imports(private val app: DemoApp) {
    private val notices = Notices(app)

    fun start(file: Uri, fileName: String) = app.scope.launch {
        val name = plain(fileName)
        notices.show(ID, app.getString(R.string.importing, name), 0)
        try {
            withContext(Dispatchers.IO) { read(file, name) }
            notices.show(ID, app.getString(R.string.imported, name))
            app.teller.change(app.teller.settings.copy(bundle = name))
        } catch (e: EdgedecException) {
            notices.show(ID, e.message.orEmpty())
        } catch (e: IOException) {
            notices.show(ID, "$name: ${e.message}")
        }
    }

    private fun read(file: Uri, name: String) {
        val total = app.contentResolver.openAssetFileDescriptor(file, "r")?.use { it.length } ?: -1
        val input = app.contentResolver.openInputStream(file) ?: throw IOException("cannot be read")
        var shown = -1
        input.use { from ->
            app.teller.bundles.read(name, from, maxOf(total, 1), Progress { done, all ->
                val percent = (done * 100 / maxOf(all, 1)).toInt().coerceIn(0, 99)
                if (percent != shown) notices.show(ID, app.getString(R.string.importing, name), percent)
                shown = percent
                true
            })
        }
    }

    companion object {
        const val ID = 1

        /** A folder's name of a file's. Nano's own name stays nano's. */
        fun plain(fileName: String): String {
            val name = fileName.removeSuffix(".zip").removeSuffix(".edb").replace(Regex("[^A-Za-z0-9_.+-]"), "_").trimStart('.', '-', '+').ifEmpty { "bundle" }
            return if (name == Settings.NANO) "nano_imported" else name.take(60)
        }
    }
}
