package org.edgedec.text

/** A value that is not there: printed as nothing, false, and an error where something is read of it. */
internal object Undefined

/** `namespace()`: a mapping that a template may assign to. */
internal class Namespace(val values: MutableMap<String, Any?>)

internal fun interface Callable {
    fun call(args: List<Any?>, named: Map<String, Any?>): Any?
}

private class Jump(val ends: Boolean) : RuntimeException(null, null, false, false)

/** Renders nodes. Steps and output are limited, because templates are untrusted. */
internal class Interpreter(values: Map<String, Any?>) {
    private val scopes = ArrayList<MutableMap<String, Any?>>().apply { add((GLOBALS + values).toMutableMap()) }
    private var out = StringBuilder()
    private var written = 0L
    private var steps = 0L

    fun render(nodes: List<Node>): String {
        run(nodes)
        return out.toString()
    }

    private fun run(nodes: List<Node>) = nodes.forEach(::run)

    private fun run(node: Node) {
        if (++steps > MOST_STEPS) throw TemplateError("takes more than $MOST_STEPS steps")
        when (node) {
            is TextNode -> write(node.text)
            is PrintNode -> at(node.line) { write(Values.text(eval(node.value))) }
            is IfNode -> at(node.line) { run(node.branches.find { Values.truth(eval(it.first)) }?.second ?: node.otherwise) }
            is ForNode -> at(node.line) { loop(node) }
            is SetNode -> at(node.line) { assign(node) }
            is MacroNode -> scopes.last()[node.name] = macro(node)
            is ScopeNode -> scoped { run(node.body) }
            is JumpNode -> throw Jump(node.ends)
        }
    }

    private fun <T> at(line: Int, run: () -> T): T = try {
        run()
    } catch (e: TemplateError) {
        throw if (e.line > 0) e else TemplateError(e.message.orEmpty(), line)
    }

    private fun write(text: String) {
        written += text.length
        if (written > LONGEST) throw TemplateError("writes more than $LONGEST characters")
        out.append(text)
    }

    private fun <T> scoped(run: () -> T): T {
        scopes.add(HashMap())
        try {
            return run()
        } finally {
            scopes.removeAt(scopes.size - 1)
        }
    }

    private fun captured(run: () -> Unit): String {
        val before = out
        out = StringBuilder()
        try {
            run()
            return out.toString()
        } finally {
            out = before
        }
    }

    private fun loop(node: ForNode) {
        val all = Values.list(eval(node.over))
        val items = if (node.where == null) all else all.filter { item -> scoped { bind(node.names, item).let { Values.truth(eval(node.where)) } } }
        if (items.isEmpty()) return run(node.otherwise)
        for ((i, item) in items.withIndex()) {
            val ended = scoped {
                bind(node.names, item)
                scopes.last()["loop"] = position(i, items)
                try {
                    run(node.body)
                    false
                } catch (jump: Jump) {
                    jump.ends
                }
            }
            if (ended) break
        }
    }

    private fun position(i: Int, items: List<Any?>): Map<String, Any?> = mapOf(
        "index" to i + 1L, "index0" to i.toLong(), "first" to (i == 0), "last" to (i == items.size - 1), "length" to items.size.toLong(),
        "revindex" to (items.size - i).toLong(), "revindex0" to (items.size - i - 1L),
        "previtem" to if (i > 0) items[i - 1] else Undefined, "nextitem" to if (i + 1 < items.size) items[i + 1] else Undefined,
    )

    private fun bind(names: List<String>, value: Any?) {
        if (names.size == 1) {
            scopes.last()[names[0]] = value
            return
        }
        val parts = Values.list(value)
        if (parts.size != names.size) throw TemplateError("${parts.size} values for ${names.size} names")
        names.forEachIndexed { i, name -> scopes.last()[name] = parts[i] }
    }

    private fun assign(node: SetNode) {
        val value = if (node.value != null) eval(node.value) else captured { scoped { run(node.body) } }
        if (node.targets.size == 1) return store(node.targets[0], value)
        val parts = Values.list(value)
        if (parts.size != node.targets.size) throw TemplateError("${parts.size} values for ${node.targets.size} names")
        node.targets.forEachIndexed { i, target -> store(target, parts[i]) }
    }

    private fun store(target: Expr, value: Any?) {
        when (target) {
            is Name -> scopes.last()[target.name] = value
            is Attribute -> (eval(target.of) as? Namespace ?: throw TemplateError("only a namespace's attributes can be set")).values[target.name] = value
            else -> throw TemplateError("cannot be assigned to")
        }
    }

    private fun macro(node: MacroNode) = Callable { args, named ->
        if (args.size > node.parameters.size) throw TemplateError("macro ${node.name} takes ${node.parameters.size} arguments")
        captured {
            scoped {
                node.parameters.forEachIndexed { i, (name, otherwise) ->
                    scopes.last()[name] = if (i < args.size) args[i] else if (name in named) named[name] else otherwise?.let(::eval) ?: Undefined
                }
                run(node.body)
            }
        }
    }

    private fun eval(e: Expr): Any? {
        if (++steps > MOST_STEPS) throw TemplateError("takes more than $MOST_STEPS steps")
        return when (e) {
            is Literal -> e.value
            is Name -> scopes.asReversed().find { e.name in it }.let { if (it == null) Undefined else it[e.name] }
            is ListExpr -> e.items.map(::eval)
            is DictExpr -> e.items.associate { (k, v) -> Values.text(eval(k)) to eval(v) }
            is Attribute -> Values.attribute(eval(e.of), e.name)
            is Index -> Values.item(eval(e.of), eval(e.at))
            is Slice -> Values.slice(eval(e.of), e.from?.let(::eval), e.to?.let(::eval), e.step?.let(::eval))
            is Call -> call(e)
            is Filter -> Filters.apply(e.name, eval(e.of), e.args.map(::eval), e.named.mapValues { eval(it.value) })
            is Test -> Filters.test(e.name, eval(e.of), e.args.map(::eval))
            is Unary -> if (e.op == "not") !Values.truth(eval(e.of)) else Values.negative(eval(e.of))
            is Binary -> binary(e)
            is Choice -> if (Values.truth(eval(e.test))) eval(e.yes) else e.no?.let(::eval) ?: Undefined
        }
    }

    private fun binary(e: Binary): Any? = when (e.op) {
        "and" -> eval(e.left).let { if (Values.truth(it)) eval(e.right) else it }
        "or" -> eval(e.left).let { if (Values.truth(it)) it else eval(e.right) }
        else -> Values.binary(e.op, eval(e.left), eval(e.right))
    }

    private fun call(e: Call): Any? {
        val args = e.args.map(::eval)
        val named = e.named.mapValues { eval(it.value) }
        val of = e.of
        if (of is Attribute) {
            val self = eval(of.of)
            val own = if (self is Namespace || self is Map<*, *>) Values.attribute(self, of.name) else Undefined
            return if (own is Callable) own.call(args, named) else Filters.method(self, of.name, args)
        }
        val function = eval(of) as? Callable ?: throw TemplateError("'${(of as? Name)?.name ?: "a value"}' is no function")
        return function.call(args, named)
    }

    private companion object {
        const val MOST_STEPS = 2_000_000L
        const val LONGEST = 4L shl 20

        val GLOBALS: Map<String, Any?> = mapOf(
            "namespace" to Callable { _, named -> Namespace(named.toMutableMap()) },
            "dict" to Callable { _, named -> named },
            "raise_exception" to Callable { args, _ -> throw TemplateError(Values.text(args.firstOrNull())) },
            "strftime_now" to Callable { args, _ -> strftime(Values.text(args.firstOrNull())) },
            "range" to Callable { args, _ -> range(args.map(Values::whole)) },
        )

        fun range(args: List<Long>): List<Long> {
            val (from, to) = if (args.size == 1) 0L to args[0] else args[0] to args[1]
            val step = args.getOrElse(2) { 1L }
            if (step == 0L || (to - from) / step > 100_000) throw TemplateError("range: too long")
            return if (step > 0) (from until to step step).toList() else (from downTo to + 1 step -step).toList()
        }

        fun strftime(form: String): String {
            val now = java.util.Calendar.getInstance()
            val parts = mapOf('Y' to "yyyy", 'm' to "MM", 'd' to "dd", 'H' to "HH", 'M' to "mm", 'S' to "ss", 'B' to "MMMM", 'b' to "MMM", 'A' to "EEEE", 'a' to "EEE", 'y' to "yy")
            return Regex("%(.)").replace(form) { match ->
                val pattern = parts[match.groupValues[1][0]] ?: throw TemplateError("strftime_now: %${match.groupValues[1]} is not supported")
                java.text.SimpleDateFormat(pattern, java.util.Locale.ENGLISH).format(now.time)
            }
        }
    }
}
