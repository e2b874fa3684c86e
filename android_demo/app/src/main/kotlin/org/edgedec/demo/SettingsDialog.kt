package org.edgedec.demo

import android.app.Activity
import android.app.AlertDialog
import android.view.View
import android.widget.ArrayAdapter
import android.widget.Spinner
import android.widget.Switch

/** Bundle, engine, threads, drafts. */
class SettingsDialog(private val activity: Activity, private val teller: Teller) {
    private val bundles = (listOf(Settings.NANO) + teller.bundles.bundles().map { it.name }).distinct()
    private val engines = listOf("" to R.string.engine_auto, "native" to R.string.engine_native, "ort" to R.string.engine_ort)
    private val threads = listOf(0) + (1..Runtime.getRuntime().availableProcessors())

    fun show(): AlertDialog {
        val view = activity.layoutInflater.inflate(R.layout.settings, null)
        val now = teller.settings
        fill(view, R.id.bundle, bundles, bundles.indexOf(now.bundle))
        fill(view, R.id.engine, engines.map { activity.getString(it.second) }, engines.indexOfFirst { it.first == now.engine })
        fill(view, R.id.threads, threads.map { if (it == 0) activity.getString(R.string.threads_auto) else "$it" }, threads.indexOf(now.threads))
        view.find<Switch>(R.id.drafts).isChecked = now.drafts
        view.find<Switch>(R.id.chats).isChecked = now.chats
        return AlertDialog.Builder(activity).setTitle(R.string.settings).setView(view).setNegativeButton(R.string.cancel, null)
            .setPositiveButton(R.string.ok) { _, _ -> if (chosen(view) != now) teller.change(chosen(view)) }.show()
    }

    private fun fill(view: View, id: Int, items: List<String>, at: Int) {
        val spinner = view.find<Spinner>(id)
        spinner.adapter = ArrayAdapter(activity, android.R.layout.simple_spinner_dropdown_item, items)
        spinner.setSelection(maxOf(at, 0))
    }

    private fun <T : View> View.find(id: Int): T = requireNotNull(findViewById<T>(id))

    private fun chosen(view: View) = Settings(
        bundle = bundles[view.find<Spinner>(R.id.bundle).selectedItemPosition],
        engine = engines[view.find<Spinner>(R.id.engine).selectedItemPosition].first,
        threads = threads[view.find<Spinner>(R.id.threads).selectedItemPosition],
        drafts = view.find<Switch>(R.id.drafts).isChecked,
        chats = view.find<Switch>(R.id.chats).isChecked,
    )
}
