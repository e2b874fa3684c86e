package org.edgedec.text

internal sealed class Node
internal class TextNode(val text: String) : Node()
internal class PrintNode(val value: Expr, val line: Int) : Node()
internal class IfNode(val branches: List<Pair<Expr, List<Node>>>, val otherwise: List<Node>, val line: Int) : Node()
internal class ForNode(val names: List<String>, val over: Expr, val where: Expr?, val body: List<Node>, val otherwise: List<Node>, val line: Int) : Node()
internal class SetNode(val targets: List<Expr>, val value: Expr?, val body: List<Node>, val line: Int) : Node()
internal class MacroNode(val name: String, val parameters: List<Pair<String, Expr?>>, val body: List<Node>) : Node()
internal class ScopeNode(val body: List<Node>) : Node()
internal class JumpNode(val ends: Boolean) : Node()

internal sealed class Expr
internal class Literal(val value: Any?) : Expr()
internal class Name(val name: String) : Expr()
internal class ListExpr(val items: List<Expr>) : Expr()
internal class DictExpr(val items: List<Pair<Expr, Expr>>) : Expr()
internal class Attribute(val of: Expr, val name: String) : Expr()
internal class Index(val of: Expr, val at: Expr) : Expr()
internal class Slice(val of: Expr, val from: Expr?, val to: Expr?, val step: Expr?) : Expr()
internal class Call(val of: Expr, val args: List<Expr>, val named: Map<String, Expr>) : Expr()
internal class Filter(val of: Expr, val name: String, val args: List<Expr>, val named: Map<String, Expr>) : Expr()
internal class Test(val of: Expr, val name: String, val args: List<Expr>) : Expr()
internal class Unary(val op: String, val of: Expr) : Expr()
internal class Binary(val op: String, val left: Expr, val right: Expr) : Expr()
internal class Choice(val test: Expr, val yes: Expr, val no: Expr?) : Expr()

/** Tokens of a template -> nodes. */
internal class TemplateParser(private val tokens: List<Lexeme>) {
    private var at = 0

    fun template(): List<Node> = body().also { if (peek.kind != Kind.END) fail("unexpected '${tokens[at + 1].text}'") }

    private val peek: Lexeme get() = tokens[at]

    private fun fail(message: String): Nothing = throw TemplateError(message, peek.line)

    private fun next(): Lexeme = tokens[at++]

    private fun isSymbol(text: String) = peek.kind == Kind.SYMBOL && peek.text == text

    private fun isName(text: String) = peek.kind == Kind.NAME && peek.text == text

    private fun take(text: String): Boolean = ((isSymbol(text) || isName(text))).also { if (it) at++ }

    private fun need(text: String) {
        if (!take(text)) fail("'$text' expected, found '${peek.text}'")
    }

    private fun name(): String = if (peek.kind == Kind.NAME) next().text else fail("a name expected, found '${peek.text}'")

    private fun close() {
        if (next().kind != Kind.CLOSE) throw TemplateError("the end of the tag expected, found '${tokens[at - 1].text}'", tokens[at - 1].line)
    }

    /** Nodes up to a tag that begins with one of `ends`, which is left there. */
    private fun body(vararg ends: String): List<Node> {
        val nodes = ArrayList<Node>()
        while (true) when (peek.kind) {
            Kind.TEXT -> nodes.add(TextNode(next().text))
            Kind.PRINT -> nodes.add(print())
            Kind.OPEN -> if (tokens[at + 1].text in ends) return nodes else nodes.add(statement())
            else -> if (ends.isEmpty()) return nodes else fail("'${ends.last()}' is missing")
        }
    }

    private fun print(): Node {
        val line = next().line
        val value = expression()
        if (next().kind != Kind.PRINT_END) throw TemplateError("'}}' expected", line)
        return PrintNode(value, line)
    }

    private fun end(name: String) {
        at++
        need(name)
        close()
    }

    private fun statement(): Node {
        val line = next().line
        return when (val word = name()) {
            "if" -> conditional(line)
            "for" -> loop(line)
            "set" -> assignment(line)
            "macro" -> macro()
            "generation" -> {
                close()
                ScopeNode(body("endgeneration").also { end("endgeneration") })
            }
            "break", "continue" -> JumpNode(word == "break").also { close() }
            else -> throw TemplateError("'$word' is not supported", line)
        }
    }

    private fun conditional(line: Int): Node {
        val branches = ArrayList<Pair<Expr, List<Node>>>()
        var test = expression()
        while (true) {
            close()
            branches.add(test to body("elif", "else", "endif"))
            at++
            when (name()) {
                "elif" -> test = expression()
                "else" -> {
                    close()
                    val otherwise = body("endif")
                    end("endif")
                    return IfNode(branches, otherwise, line)
                }
                else -> return IfNode(branches, emptyList(), line).also { close() }
            }
        }
    }

    private fun loop(line: Int): Node {
        val names = arrayListOf(name())
        while (take(",")) names.add(name())
        need("in")
        val over = disjunction()
        val where = if (take("if")) expression() else null
        close()
        val inner = body("else", "endfor")
        var otherwise = emptyList<Node>()
        if (tokens[at + 1].text == "else") {
            end("else")
            otherwise = body("endfor")
        }
        end("endfor")
        return ForNode(names, over, where, inner, otherwise, line)
    }

    private fun assignment(line: Int): Node {
        val targets = arrayListOf(postfix())
        while (take(",")) targets.add(postfix())
        if (take("=")) {
            val first = expression()
            val value = if (isSymbol(",")) ListExpr(arrayListOf(first).also { while (take(",")) it.add(expression()) }) else first
            return SetNode(targets, value, emptyList(), line).also { close() }
        }
        close()
        val inner = body("endset")
        end("endset")
        return SetNode(targets, null, inner, line)
    }

    private fun macro(): Node {
        val name = name()
        val parameters = ArrayList<Pair<String, Expr?>>()
        need("(")
        while (!take(")")) {
            val parameter = name()
            parameters.add(parameter to if (take("=")) expression() else null)
            if (!isSymbol(")")) need(",")
        }
        close()
        return MacroNode(name, parameters, body("endmacro").also { end("endmacro") })
    }

    // ---- expressions, from the loosest operator to the tightest -------------------------------------

    private fun expression(): Expr {
        val value = disjunction()
        if (!take("if")) return value
        val test = disjunction()
        return Choice(test, value, if (take("else")) expression() else null)
    }

    private fun disjunction(): Expr {
        var left = conjunction()
        while (take("or")) left = Binary("or", left, conjunction())
        return left
    }

    private fun conjunction(): Expr {
        var left = negation()
        while (take("and")) left = Binary("and", left, negation())
        return left
    }

    private fun negation(): Expr = if (take("not")) Unary("not", negation()) else comparison()

    private fun comparison(): Expr {
        var left = sum()
        while (true) {
            val op = when {
                peek.kind == Kind.SYMBOL && peek.text in COMPARISONS -> next().text
                take("in") -> "in"
                isName("not") && tokens[at + 1].text == "in" -> "not in".also { at += 2 }
                else -> return left
            }
            left = Binary(op, left, sum())
        }
    }

    private fun sum(): Expr = chain(setOf("+", "-"), ::joined)

    private fun joined(): Expr = chain(setOf("~"), ::product)

    private fun product(): Expr = chain(setOf("*", "/", "//", "%"), ::unary)

    private fun chain(ops: Set<String>, part: () -> Expr): Expr {
        var left = part()
        while (peek.kind == Kind.SYMBOL && peek.text in ops) left = Binary(next().text, left, part())
        return left
    }

    private fun unary(): Expr = when {
        take("-") -> filtered(Unary("-", postfix()))
        take("+") -> filtered(postfix())
        else -> filtered(postfix())
    }

    /** Filters and tests. */
    private fun filtered(value: Expr): Expr {
        var result = value
        while (true) result = when {
            take("|") -> name().let { name -> if (isSymbol("(")) arguments().let { (args, named) -> Filter(result, name, args, named) } else Filter(result, name, emptyList(), emptyMap()) }
            take("is") -> test(result)
            else -> return result
        }
    }

    private fun test(of: Expr): Expr {
        val negated = take("not")
        val name = name()
        val args = when {
            isSymbol("(") -> arguments().first
            peek.kind in setOf(Kind.STRING, Kind.NUMBER) || (peek.kind == Kind.NAME && peek.text !in WORDS) -> listOf(postfix())
            else -> emptyList()
        }
        return Test(of, name, args).let { if (negated) Unary("not", it) else it }
    }

    private fun postfix(): Expr {
        var value = primary()
        while (true) value = when {
            take(".") -> Attribute(value, if (peek.kind == Kind.NUMBER) next().text else name())
            take("[") -> subscript(value)
            isSymbol("(") -> arguments().let { (args, named) -> Call(value, args, named) }
            else -> return value
        }
    }

    private fun subscript(of: Expr): Expr {
        fun part() = if (isSymbol(":") || isSymbol("]")) null else expression()
        val first = part()
        if (take("]")) return Index(of, first ?: fail("an index expected"))
        need(":")
        val to = part()
        val step = if (take(":")) part() else null
        need("]")
        return Slice(of, first, to, step)
    }

    private fun arguments(): Pair<List<Expr>, Map<String, Expr>> {
        val args = ArrayList<Expr>()
        val named = LinkedHashMap<String, Expr>()
        need("(")
        while (!take(")")) {
            if (peek.kind == Kind.NAME && tokens[at + 1].let { it.kind == Kind.SYMBOL && it.text == "=" }) {
                val name = name()
                at++
                named[name] = expression()
            } else args.add(expression())
            if (!isSymbol(")")) need(",")
        }
        return args to named
    }

    private fun primary(): Expr {
        val token = next()
        return when (token.kind) {
            Kind.STRING -> Literal(token.text + generateSequence { if (peek.kind == Kind.STRING) next().text else null }.joinToString(""))
            Kind.NUMBER -> Literal(if ('.' in token.text) token.text.toDouble() else token.text.toLongOrNull() ?: throw TemplateError("number ${token.text}", token.line))
            Kind.NAME -> constant(token.text)
            else -> when (token.text.takeIf { token.kind == Kind.SYMBOL }) {
                "(" -> group()
                "[" -> ListExpr(items("]"))
                "{" -> dictionary()
                else -> throw TemplateError("unexpected '${token.text.ifEmpty { "end" }}'", token.line)
            }
        }
    }

    private fun constant(name: String): Expr = when (name) {
        "true", "True" -> Literal(true)
        "false", "False" -> Literal(false)
        "none", "None" -> Literal(null)
        else -> Name(name)
    }

    private fun group(): Expr {
        if (take(")")) return ListExpr(emptyList())
        val first = expression()
        if (take(")")) return first
        need(",")
        return ListExpr(listOf(first) + items(")"))
    }

    private fun items(end: String): List<Expr> {
        val items = ArrayList<Expr>()
        while (!take(end)) {
            items.add(expression())
            if (!isSymbol(end)) need(",")
        }
        return items
    }

    private fun dictionary(): Expr {
        val items = ArrayList<Pair<Expr, Expr>>()
        while (!take("}")) {
            val key = expression()
            need(":")
            items.add(key to expression())
            if (!isSymbol("}")) need(",")
        }
        return DictExpr(items)
    }

    private companion object {
        val COMPARISONS = setOf("==", "!=", "<", "<=", ">", ">=")
        val WORDS = setOf("and", "or", "not", "in", "is", "if", "else")
    }
}
