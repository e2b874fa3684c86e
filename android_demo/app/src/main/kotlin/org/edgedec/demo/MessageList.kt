package org.edgedec.demo

import android.text.SpannableString
import android.text.Spanned
import android.text.style.UnderlineSpan
import android.view.LayoutInflater
import android.view.View
import android.view.ViewGroup
import android.widget.BaseAdapter
import android.widget.TextView

/** The turns of a conversation; drafted tokens are underlined. */
class MessageList(private val conversation: Conversation) : BaseAdapter() {
    override fun getCount(): Int = conversation.turns.size

    override fun getItem(position: Int): Turn = conversation.turns[position]

    override fun getItemId(position: Int): Long = position.toLong()

    override fun getView(position: Int, view: View?, parent: ViewGroup): View {
        val text = (view ?: LayoutInflater.from(parent.context).inflate(R.layout.message, parent, false)) as TextView
        val turn = getItem(position)
        val context = parent.context
        text.text = marked(turn)
        text.setBackgroundColor(if (turn.mine) context.getColor(R.color.mine) else 0)
        text.contentDescription = context.getString(R.string.message_of, context.getString(if (turn.mine) R.string.you else R.string.model), turn.text)
        return text
    }

    private fun marked(turn: Turn) = SpannableString(turn.text).apply {
        for (mark in turn.drafted) setSpan(UnderlineSpan(), mark.first, mark.last + 1, Spanned.SPAN_EXCLUSIVE_EXCLUSIVE)
    }
}
