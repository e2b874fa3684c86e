package org.edgedec.demo

import android.app.job.JobInfo
import android.app.job.JobParameters
import android.app.job.JobScheduler
import android.app.job.JobService
import android.content.ComponentName
import android.content.Context
import android.net.Uri
import java.io.File
import java.io.IOException
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import org.edgedec.Edgedec
import org.edgedec.EdgedecException

/**
 * Summarises text files in the background, one after another, with JobScheduler (which WorkManager stands
 * on). Finished parts are on disk, so that a stopped job or a killed process can be resumed.
 */
class SummaryJob : JobService() {
    private var running: Job? = null

    override fun onStartJob(parameters: JobParameters): Boolean {
        val app = application as DemoApp
        running = app.scope.launch {
            val again = try {
                withContext(Dispatchers.Default) { all(app) }
                false
            } catch (e: CancellationException) {
                throw e
            } catch (e: EdgedecException) {
                Notices(app).show(ID, e.message.orEmpty())
                false
            } catch (e: IOException) {
                true
            }
            jobFinished(parameters, again)
        }
        return true
    }

    /** The system stops the job: true reschedules it. */
    override fun onStopJob(parameters: JobParameters): Boolean {
        running?.cancel()
        return true
    }

    private suspend fun all(app: DemoApp) {
        val waiting = folder(app).listFiles { file -> file.name.endsWith(WAITING) }.orEmpty().sortedBy { it.lastModified() }
        if (waiting.isEmpty()) return
        val settings = app.teller.settings
        Edgedec.open(File(app.filesDir, "bundles/${settings.bundle}"), settings.open()).use { model ->
            for (file in waiting) {
                val out = File(file.path.removeSuffix(WAITING) + DONE)
                Summary(model, file, out).run { part, of -> Notices(app).show(ID, app.getString(R.string.summarising, part, of), part * 100 / of) }
                Notices(app).show(ID, app.getString(R.string.summarised, out.readText().take(400)))
                file.delete()
            }
        }
    }

    companion object {
        const val ID = 2
        private const val WAITING = ".waiting"
        private const val DONE = ".summary.txt"

        fun folder(context: Context) = File(context.filesDir, "summaries").also { it.mkdirs() }

        /** Copies the file, because the permission to read it ends with the process, and queues the job. */
        suspend fun queue(app: DemoApp, file: Uri, fileName: String) {
            withContext(Dispatchers.IO) {
                val part = File(folder(app), "${Imports.plain(fileName)}.part")
                app.contentResolver.openInputStream(file)?.use { input -> part.outputStream().use { input.copyTo(it) } }
                part.renameTo(File(folder(app), Imports.plain(fileName) + WAITING))
            }
            schedule(app)
        }

        fun schedule(context: Context): Int = requireNotNull(context.getSystemService(JobScheduler::class.java))
            .schedule(JobInfo.Builder(ID, ComponentName(context, SummaryJob::class.java)).setOverrideDeadline(0).build())
    }
}
