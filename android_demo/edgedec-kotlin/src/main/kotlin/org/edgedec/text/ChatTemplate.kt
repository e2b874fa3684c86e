package org.edgedec.text

import org.edgedec.TextException

/** One turn of a chat. */
data class Message(val role: String, val content: String)

/**
 * A chat template: the strict subset of Jinja that models' templates use, with Hugging Face's names and
 * filters. Unsupported features are errors with a line number, never ignored. Nothing outside of the values
 * is reached; output and steps are limited. (Jinja for the JVM is Jinjava, which needs a desktop's reflection
 * and eleven megabytes.)
 */
class ChatTemplate(source: String) {
    private val body: List<Node> = guarded { TemplateParser(TemplateLexer(source).tokens()).template() }

    /** The chat as the model was trained to read it. [names]: bos_token, eos_token and the like. */
    @JvmOverloads
    fun render(messages: List<Message>, names: Map<String, String> = emptyMap(), addGenerationPrompt: Boolean = true): String {
        val plain = messages.map { linkedMapOf<String, Any?>("role" to it.role, "content" to it.content) }
        return renderValues(mapOf("messages" to plain, "tools" to null, "documents" to null, "add_generation_prompt" to addGenerationPrompt) + names)
    }

    /** [values]: null, Boolean, Long, Double, String, List and Map. */
    internal fun renderValues(values: Map<String, Any?>): String = guarded { Interpreter(values).render(body) }

    private fun <T> guarded(run: () -> T): T = try {
        run()
    } catch (e: TemplateError) {
        throw TextException("chat template${if (e.line > 0) ", line ${e.line}" else ""}: ${e.message}", e)
    } catch (e: StackOverflowError) {
        throw TextException("chat template: nested too deeply")
    }
}

internal class TemplateError(message: String, val line: Int = 0) : RuntimeException(message)

internal enum class Kind { TEXT, NAME, STRING, NUMBER, SYMBOL, OPEN, CLOSE, PRINT, PRINT_END, END }

internal class Lexeme(val kind: Kind, val text: String, val line: Int)

/** Cuts a template into texts and the tokens of its tags; as Jinja with trim_blocks and lstrip_blocks. */
internal class TemplateLexer(source: String) {
    private val source = source.replace("\r\n", "\n").removeSuffix("\n")
    private val out = ArrayList<Lexeme>()
    private var at = 0

    fun tokens(): List<Lexeme> {
        while (at < source.length) {
            val open = nextOpen()
            if (open < 0) {
                text(source.substring(at))
                break
            }
            val kind = source[open + 1]
            val mark = source.getOrNull(open + 2)
            var before = source.substring(at, open)
            if (mark == '-') before = before.trimEnd() else if (kind != '{' && mark != '+') before = stripLine(before)
            text(before)
            at = open + if (mark == '-' || mark == '+') 3 else 2
            tag(kind, open)
        }
        out.add(Lexeme(Kind.END, "", line(source.length)))
        return out
    }

    private fun nextOpen(): Int {
        var i = source.indexOf('{', at)
        while (i >= 0 && source.getOrNull(i + 1).let { it != '{' && it != '%' && it != '#' }) i = source.indexOf('{', i + 1)
        return i
    }

    /** lstrip_blocks: spaces before a tag that begins its line are dropped. */
    private fun stripLine(before: String): String {
        val start = before.lastIndexOf('\n') + 1
        val begins = start > 0 || at == 0 || source.getOrNull(at - 1) == '\n'
        return if (begins && before.substring(start).isBlank()) before.substring(0, start) else before
    }

    private fun text(text: String) {
        if (text.isNotEmpty()) out.add(Lexeme(Kind.TEXT, text, line(at)))
    }

    private fun tag(kind: Char, open: Int) {
        if (kind == '#') {
            val end = source.indexOf("#}", at).also { if (it < 0) throw TemplateError("a comment has no end", line(open)) }
            return close(end, source[end - 1] == '-', true)
        }
        val close = if (kind == '{') "}}" else "%}"
        out.add(Lexeme(if (kind == '{') Kind.PRINT else Kind.OPEN, "", line(open)))
        while (true) {
            while (at < source.length && source[at].isWhitespace()) at++
            if (at >= source.length) throw TemplateError("a tag has no end", line(open))
            val trims = (source[at] == '-' || source[at] == '+') && source.startsWith(close, at + 1)
            if (trims || (source.startsWith(close, at) && !(close == "}}" && depth > 0))) {
                out.add(Lexeme(if (kind == '{') Kind.PRINT_END else Kind.CLOSE, "", line(at)))
                return close(if (trims) at + 1 else at, trims && source[at] == '-', kind != '{' && !(trims && source[at] == '+'))
            }
            lexeme()
        }
    }

    private var depth = 0

    private fun close(end: Int, trim: Boolean, newline: Boolean) {
        at = end + 2
        if (trim) while (at < source.length && source[at].isWhitespace()) at++
        else if (newline && source.getOrNull(at) == '\n') at++
    }

    private fun lexeme() {
        val begin = at
        val c = source[at]
        when {
            c.isLetter() || c == '_' -> word(Kind.NAME) { it.isLetterOrDigit() || it == '_' }
            c.isDigit() -> word(Kind.NUMBER) { it.isDigit() || (it == '.' && source.getOrNull(at + 1)?.isDigit() == true) }
            c == '\'' || c == '"' -> string(c)
            else -> {
                val symbol = SYMBOLS.find { source.startsWith(it, at) } ?: throw TemplateError("unexpected '$c'", line(at))
                if (symbol == "{") depth++ else if (symbol == "}") depth--
                at += symbol.length
                out.add(Lexeme(Kind.SYMBOL, symbol, line(begin)))
            }
        }
    }

    private fun word(kind: Kind, part: (Char) -> Boolean) {
        val begin = at
        while (at < source.length && part(source[at])) at++
        out.add(Lexeme(kind, source.substring(begin, at), line(begin)))
    }

    private fun string(quote: Char) {
        val begin = at++
        val text = StringBuilder()
        while (true) {
            val c = source.getOrNull(at++) ?: throw TemplateError("a string has no end", line(begin))
            if (c == quote) break
            if (c != '\\') text.append(c) else escape(text)
        }
        out.add(Lexeme(Kind.STRING, text.toString(), line(begin)))
    }

    private fun escape(text: StringBuilder) {
        when (val c = source.getOrNull(at++)) {
            'n' -> text.append('\n')
            't' -> text.append('\t')
            'r' -> text.append('\r')
            '\\', '\'', '"' -> text.append(c)
            '\n' -> Unit
            'x', 'u' -> {
                val digits = if (c == 'x') 2 else 4
                val code = source.substring(at, minOf(at + digits, source.length)).toIntOrNull(16) ?: throw TemplateError("a broken escape", line(at))
                text.append(code.toChar())
                at += digits
            }
            else -> text.append('\\').append(c ?: "")
        }
    }

    private fun line(position: Int): Int = source.substring(0, minOf(position, source.length)).count { it == '\n' } + 1

    private companion object {
        val SYMBOLS = listOf("**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=", "(", ")", "[", "]", "{", "}", ",", ".", ":", "|")
    }
}
