package org.edgedec.demo

import android.app.Notification
import android.app.NotificationChannel
import android.app.NotificationManager
import android.content.Context

/** Notifications of background work; without the permission nothing is shown. */
class Notices(private val context: Context) {
    private val manager = requireNotNull(context.getSystemService(NotificationManager::class.java))

    /** [percent] negative: no bar. */
    fun show(id: Int, text: String, percent: Int = -1) {
        manager.createNotificationChannel(NotificationChannel(CHANNEL, context.getString(R.string.progress_channel), NotificationManager.IMPORTANCE_LOW))
        val notice = Notification.Builder(context, CHANNEL).setSmallIcon(R.drawable.icon).setContentTitle(text)
            .setStyle(Notification.BigTextStyle().bigText(text)).setOnlyAlertOnce(true).setOngoing(percent in 0..99)
        if (percent >= 0) notice.setProgress(100, percent, false)
        manager.notify(id, notice.build())
    }

    private companion object {
        const val CHANNEL = "progress"
    }
}
