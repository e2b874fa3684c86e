package org.edgedec.text

/** Python's meaning of values: truth, text, order, items. */
internal object Values {
    fun truth(v: Any?): Boolean = when (v) {
        null, Undefined, false -> false
        is String -> v.isNotEmpty()
        is Long -> v != 0L
        is Double -> v != 0.0
        is Collection<*> -> v.isNotEmpty()
        is Map<*, *> -> v.isNotEmpty()
        else -> true
    }

    fun text(v: Any?): String = when (v) {
        null -> "None"
        Undefined -> ""
        is Boolean -> if (v) "True" else "False"
        is String -> v
        is List<*> -> v.joinToString(", ", "[", "]", transform = ::repr)
        is Map<*, *> -> v.entries.joinToString(", ", "{", "}") { repr(it.key) + ": " + repr(it.value) }
        is Callable, is Namespace -> throw TemplateError("a function cannot be printed")
        else -> v.toString()
    }

    private fun repr(v: Any?): String {
        if (v !is String) return text(v)
        val quote = if ('\'' in v && '"' !in v) '"' else '\''
        val escaped = v.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
        return quote + (if (quote == '\'') escaped.replace("'", "\\'") else escaped) + quote
    }

    fun list(v: Any?): List<Any?> = when (v) {
        is List<*> -> v
        is Map<*, *> -> v.keys.toList()
        is String -> v.codePoints().toArray().map { String(Character.toChars(it)) }
        Undefined -> emptyList()
        else -> throw TemplateError("${text(v).take(40)} cannot be iterated over")
    }

    fun whole(v: Any?): Long = when (v) {
        is Long -> v
        is Boolean -> if (v) 1 else 0
        else -> throw TemplateError("${text(v).take(40)} is no whole number")
    }

    fun attribute(of: Any?, name: String): Any? = when {
        name.startsWith("_") -> throw TemplateError("attribute '$name' is unsafe")
        of is Namespace -> if (name in of.values) of.values[name] else Undefined
        of is Map<*, *> -> if (name in of) of[name] else Undefined
        of === Undefined -> throw TemplateError("'$name' of a value that is not defined")
        of is List<*> && name.toIntOrNull() != null -> item(of, name.toLong())
        else -> Undefined
    }

    fun item(of: Any?, at: Any?): Any? = when {
        of === Undefined -> throw TemplateError("an item of a value that is not defined")
        at is String -> attribute(of, at)
        of is Map<*, *> -> of[at] ?: Undefined
        else -> list(of).let { items -> whole(at).let { i -> items.getOrElse((if (i < 0) i + items.size else i).toInt()) { Undefined } } }
    }

    fun slice(of: Any?, from: Any?, to: Any?, step: Any?): Any? {
        val items = list(of)
        val by = if (step == null) 1L else whole(step)
        if (by == 0L) throw TemplateError("a slice of step 0")
        val n = items.size.toLong()
        fun bound(v: Any?, otherwise: Long): Long {
            if (v == null) return otherwise
            val i = whole(v).let { if (it < 0) it + n else it }
            return if (by > 0) i.coerceIn(0, n) else i.coerceIn(-1, n - 1)
        }
        val first = bound(from, if (by > 0) 0 else n - 1)
        val last = bound(to, if (by > 0) n else -1)
        val picked = if (by > 0) (first until last step by).map { items[it.toInt()] } else (first downTo last + 1 step -by).map { items[it.toInt()] }
        return if (of is String) picked.joinToString("") else picked
    }

    fun negative(v: Any?): Any = if (v is Double) -v else -whole(v)

    fun same(a: Any?, b: Any?): Boolean = when {
        a is Number && b is Number -> a.toDouble() == b.toDouble()
        a is Boolean && b is Number -> whole(a).toDouble() == b.toDouble()
        a is Number && b is Boolean -> same(b, a)
        else -> a == b
    }

    fun holds(all: Any?, v: Any?): Boolean = when (all) {
        is String -> all.contains(v as? String ?: throw TemplateError("'in' a text needs a text"))
        is Map<*, *> -> v in all
        Undefined -> false
        else -> list(all).any { same(it, v) }
    }

    fun binary(op: String, a: Any?, b: Any?): Any? = when (op) {
        "==" -> same(a, b)
        "!=" -> !same(a, b)
        "in" -> holds(b, a)
        "not in" -> !holds(b, a)
        "~" -> text(a) + text(b)
        "<", "<=", ">", ">=" -> compare(a, b).let { c -> if (op == "<") c < 0 else if (op == "<=") c <= 0 else if (op == ">") c > 0 else c >= 0 }
        "+" -> if (a is String && b is String) a + b else if (a is List<*> && b is List<*>) a + b else arithmetic(op, a, b)
        "*" -> if (a is String && b is Long) repeated(a, b) else arithmetic(op, a, b)
        else -> arithmetic(op, a, b)
    }

    private fun repeated(text: String, times: Long): String {
        if (text.length * times > 1 shl 20) throw TemplateError("the result of * would be too large")
        return text.repeat(maxOf(times, 0).toInt())
    }

    private fun compare(a: Any?, b: Any?): Int = when {
        a is String && b is String -> a.compareTo(b)
        a is Number && b is Number -> a.toDouble().compareTo(b.toDouble())
        else -> throw TemplateError("${text(a).take(20)} and ${text(b).take(20)} cannot be compared")
    }

    private fun arithmetic(op: String, a: Any?, b: Any?): Any {
        if (a is Double || b is Double || op == "/") return real(op, (a as? Number ?: whole(a)).toDouble(), (b as? Number ?: whole(b)).toDouble())
        val x = whole(a)
        val y = whole(b)
        if (y == 0L && op in setOf("//", "%")) throw TemplateError("division by zero")
        return when (op) {
            "+" -> x + y
            "-" -> x - y
            "*" -> x * y
            "//" -> Math.floorDiv(x, y)
            else -> Math.floorMod(x, y)
        }
    }

    private fun real(op: String, x: Double, y: Double): Double = when (op) {
        "+" -> x + y
        "-" -> x - y
        "*" -> x * y
        "/" -> if (y == 0.0) throw TemplateError("division by zero") else x / y
        else -> throw TemplateError("$op of fractions is not supported")
    }
}
