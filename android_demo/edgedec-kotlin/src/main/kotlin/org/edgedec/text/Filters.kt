package org.edgedec.text

/** Filters, tests and methods of templates. */
internal object Filters {
    fun apply(name: String, v: Any?, args: List<Any?>, named: Map<String, Any?>): Any? = when (name) {
        "trim" -> if (args.isEmpty()) Values.text(v).trim(::space) else method(Values.text(v), "strip", args)
        "upper", "lower", "title", "capitalize" -> method(Values.text(v), name, emptyList())
        "length", "count" -> if (v is Map<*, *>) v.size.toLong() else Values.list(v).size.toLong()
        "string" -> Values.text(v)
        "safe", "e", "escape" -> if (name == "safe") v else throw TemplateError("filter '$name' is not supported")
        "default", "d" -> if (v === Undefined || (Values.truth(args.getOrElse(1) { named["boolean"] }) && !Values.truth(v))) args.getOrElse(0) { "" } else v
        "first" -> Values.list(v).firstOrNull() ?: Undefined
        "last" -> Values.list(v).lastOrNull() ?: Undefined
        "list" -> Values.list(v)
        "reverse" -> if (v is String) v.reversed() else Values.list(v).reversed()
        "unique" -> Values.list(v).distinct()
        "join" -> Values.list(v).joinToString(Values.text(args.getOrElse(0) { named["d"] ?: "" }), transform = Values::text)
        "replace" -> Values.text(v).replace(Values.text(args[0]), Values.text(args[1]))
        "items" -> pairs(v)
        "dictsort" -> pairs(v).sortedBy { Values.text((it as List<*>)[0]).lowercase() }
        "int" -> (v as? Number)?.toLong() ?: Values.text(v).trim().toLongOrNull() ?: args.getOrElse(0) { 0L }
        "float" -> (v as? Number)?.toDouble() ?: Values.text(v).trim().toDoubleOrNull() ?: args.getOrElse(0) { 0.0 }
        "abs" -> if (v is Double) Math.abs(v) else Math.abs(Values.whole(v))
        "indent" -> indent(Values.text(v), args, named)
        "tojson" -> ToJson(named["indent"]?.let(Values::whole)?.toInt(), Values.truth(named["ensure_ascii"] ?: args.getOrNull(0) ?: false)).write(v)
        "selectattr", "rejectattr" -> Values.list(v).filter { (name == "selectattr") == passes(Values.attribute(it, Values.text(args[0])), args.drop(1)) }
        "select", "reject" -> Values.list(v).filter { (name == "select") == passes(it, args) }
        "map" -> map(v, args, named)
        else -> throw TemplateError("filter '$name' is not supported")
    }

    private fun space(c: Char) = c.isWhitespace()

    private fun passes(v: Any?, test: List<Any?>): Boolean = if (test.isEmpty()) Values.truth(v) else test(Values.text(test[0]), v, test.drop(1))

    private fun map(v: Any?, args: List<Any?>, named: Map<String, Any?>): List<Any?> {
        val attribute = named["attribute"]?.let(Values::text) ?: return Values.list(v).map { apply(Values.text(args[0]), it, args.drop(1), emptyMap()) }
        return Values.list(v).map { Values.attribute(it, attribute).let { found -> if (found === Undefined && "default" in named) named["default"] else found } }
    }

    private fun pairs(v: Any?): List<Any?> = when (v) {
        is Map<*, *> -> v.entries.map { listOf(it.key, it.value) }
        Undefined -> emptyList()
        else -> throw TemplateError("items of what is no mapping")
    }

    private fun indent(text: String, args: List<Any?>, named: Map<String, Any?>): String {
        val width = args.getOrElse(0) { named["width"] ?: 4L }
        val prefix = if (width is String) width else " ".repeat(Values.whole(width).toInt().coerceIn(0, 1000))
        val first = Values.truth(args.getOrElse(1) { named["first"] })
        return text.split("\n").mapIndexed { i, line -> if ((i == 0 && !first) || line.isEmpty()) line else prefix + line }.joinToString("\n")
    }

    fun test(name: String, v: Any?, args: List<Any?>): Boolean = when (name) {
        "defined" -> v !== Undefined
        "undefined" -> v === Undefined
        "none" -> v == null
        "string" -> v is String
        "mapping" -> v is Map<*, *>
        "sequence", "iterable" -> v is String || v is List<*> || v is Map<*, *>
        "number" -> v is Number || v is Boolean
        "integer" -> v is Long
        "float" -> v is Double
        "boolean" -> v is Boolean
        "true" -> v == true
        "false" -> v == false
        "callable" -> v is Callable
        "odd" -> Values.whole(v) % 2 != 0L
        "even" -> Values.whole(v) % 2 == 0L
        "divisibleby" -> Values.whole(v) % Values.whole(args[0]) == 0L
        "equalto", "eq", "sameas" -> Values.same(v, args[0])
        "ne" -> !Values.same(v, args[0])
        "in" -> Values.holds(args[0], v)
        "lower" -> v is String && v == v.lowercase()
        "upper" -> v is String && v == v.uppercase()
        else -> throw TemplateError("test '$name' is not supported")
    }

    fun method(self: Any?, name: String, args: List<Any?>): Any? = when (self) {
        is String -> text(self, name, args)
        is Map<*, *> -> when (name) {
            "items" -> pairs(self)
            "keys" -> self.keys.toList()
            "values" -> self.values.toList()
            "get" -> if (args[0] in self) self[args[0]] else args.getOrNull(1)
            else -> throw TemplateError("method '$name' of a mapping is not supported")
        }
        is List<*> -> when (name) {
            "index" -> self.indexOfFirst { Values.same(it, args[0]) }.toLong()
            "count" -> self.count { Values.same(it, args[0]) }.toLong()
            else -> throw TemplateError("method '$name' of a list is not supported")
        }
        else -> throw TemplateError("'$name' of a value that has no methods")
    }

    private fun text(s: String, name: String, args: List<Any?>): Any? {
        fun arg(i: Int) = args[i] as? String ?: throw TemplateError("$name needs a text")
        fun strips(c: Char) = if (args.isEmpty()) c.isWhitespace() else c in arg(0)
        return when (name) {
            "strip" -> s.trim(::strips)
            "lstrip" -> s.trimStart(::strips)
            "rstrip" -> s.trimEnd(::strips)
            "startswith" -> any(args[0]) { s.startsWith(it) }
            "endswith" -> any(args[0]) { s.endsWith(it) }
            "upper" -> s.uppercase()
            "lower" -> s.lowercase()
            "capitalize" -> s.take(1).uppercase() + s.drop(1).lowercase()
            "title" -> Regex("\\p{L}+").replace(s) { m -> m.value.take(1).uppercase() + m.value.drop(1).lowercase() }
            "split" -> split(s, args)
            "splitlines" -> s.removeSuffix("\n").split("\n")
            "replace" -> s.replace(arg(0), arg(1))
            "join" -> Values.list(args[0]).joinToString(s, transform = Values::text)
            "find" -> s.indexOf(arg(0)).toLong()
            "count" -> s.windowed(maxOf(arg(0).length, 1)).count { it == arg(0) }.toLong()
            "isdigit" -> s.isNotEmpty() && s.all(Char::isDigit)
            "removeprefix" -> s.removePrefix(arg(0))
            "removesuffix" -> s.removeSuffix(arg(0))
            else -> throw TemplateError("method '$name' of a text is not supported")
        }
    }

    private fun any(of: Any?, holds: (String) -> Boolean): Boolean = if (of is List<*>) of.any { holds(Values.text(it)) } else holds(Values.text(of))

    private fun split(s: String, args: List<Any?>): List<String> {
        if (args.isEmpty() || args[0] == null) return s.split(Regex("\\s+")).filter { it.isNotEmpty() }
        val limit = args.getOrNull(1)?.let { Values.whole(it).toInt() + 1 } ?: 0
        return s.split(Values.text(args[0]), limit = maxOf(limit, 0))
    }
}

/** `json.dumps` of Python. */
internal class ToJson(private val indent: Int?, private val ascii: Boolean) {
    fun write(v: Any?): String = StringBuilder().also { value(v, it, 0) }.toString()

    private fun value(v: Any?, out: StringBuilder, depth: Int) {
        when (v) {
            null -> out.append("null")
            is Boolean, is Long -> out.append(v)
            is Double -> out.append(v)
            is String -> string(v, out)
            is List<*> -> items(v, '[', ']', out, depth) { value(it, out, depth + 1) }
            is Map<*, *> -> items(v.entries, '{', '}', out, depth) {
                string(Values.text(it.key), out)
                out.append(": ")
                value(it.value, out, depth + 1)
            }
            else -> throw TemplateError("a value that is no JSON")
        }
    }

    private fun <T> items(all: Collection<T>, open: Char, close: Char, out: StringBuilder, depth: Int, each: (T) -> Unit) {
        out.append(open)
        all.forEachIndexed { i, item ->
            if (i > 0) out.append(if (indent == null) ", " else ",")
            line(out, depth + 1)
            each(item)
        }
        if (all.isNotEmpty()) line(out, depth)
        out.append(close)
    }

    private fun line(out: StringBuilder, depth: Int) {
        if (indent != null) out.append('\n').append(" ".repeat(indent * depth))
    }

    private fun string(s: String, out: StringBuilder) {
        out.append('"')
        for (c in s) when {
            c == '"' || c == '\\' -> out.append('\\').append(c)
            c == '\n' -> out.append("\\n")
            c == '\t' -> out.append("\\t")
            c == '\r' -> out.append("\\r")
            c == '\b' -> out.append("\\b")
            c == '\u000C' -> out.append("\\f")
            c < ' ' || (ascii && c > '~') -> out.append("\\u%04x".format(c.code))
            else -> out.append(c)
        }
        out.append('"')
    }
}
