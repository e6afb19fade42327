// JSON and SQL laid out to be read.

// Characters of a line of JSON, and how deep JSON is laid out.
const WIDTH = 88, DEEP = 40;

// JSON as a tree of its tokens, which stay as they are written: numbers would lose digits. None of other text.
export function parsed(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s"[\]{},:]+/g);
  let at = 0;
  const value = (depth) => {
    const open = tokens[at++];
    if (open !== "{" && open !== "[") return open;
    if (depth > DEEP) throw new RangeError("too deep");
    const close = open === "{" ? "}" : "]";
    const items = [];
    while (tokens[at] !== close) {
      let name = null;
      if (open === "{") {
        name = tokens[at];
        at += 2;
      }
      items.push({ name, value: value(depth + 1) });
      if (tokens[at] === ",") at++;
    }
    at++;
    return { open, close, items };
  };
  try {
    return value(0);
  } catch {
    return null;
  }
}

const named = ({ name, value }, of) => (name === null ? of(value) : `${name}: ${of(value)}`);
const flat = (tree) => (typeof tree === "string" ? tree : `${tree.open}${tree.items.map((item) => named(item, flat)).join(", ")}${tree.close}`);

export function lines(tree, indent = "") {
  const one = flat(tree);
  if (typeof tree === "string" || tree.items.length === 0 || indent.length + one.length <= WIDTH) return one;
  const inner = `${indent}  `;
  return `${tree.open}\n${tree.items.map((item) => inner + named(item, (value) => lines(value, inner))).join(",\n")}\n${indent}${tree.close}`;
}

// A text, laid out if it is JSON.
export function laidOut(text) {
  const tree = parsed(text);
  return tree ? lines(tree) : text;
}

// A statement of clauses. Prose that begins with the same words mostly goes on otherwise, or with a capital letter.
const SQL = /^\s*(?:EXPLAIN\s+(?:\w+\s+){0,2})?(?:SELECT\s.+\sFROM\s|WITH\s.+\sAS\s*\(|INSERT\s+INTO\s|UPDATE\s.+\sSET\s|DELETE\s+FROM\s|CREATE\s.+\sAS\s+SELECT\s)/i;
const PROSE = /^\s*[A-Z][a-z]/;
// What is quoted or commented on, perhaps up to a cut, is no clause, and DELETE FROM is one.
const CLAUSE = /('(?:[^']|'')*(?:'|$)|"(?:[^"]|"")*(?:"|$)|`[^`]*(?:`|$)|\[[^\]]*\]|\$\$.*?(?:\$\$|$)|--.*|\/\*.*?(?:\*\/|$)|\bDELETE\s+FROM\b)|(?<!\s)\s+((?:FROM|WHERE|GROUP BY|ORDER BY|HAVING|LIMIT|UNION|VALUES|SET|(?:(?:LEFT|RIGHT|FULL|INNER|CROSS|NATURAL)\s+)*(?:OUTER\s+)?JOIN)\b)/gi;
// Statements of fewer letters and at most two clauses stay a line. Longer ones than the last are data.
const SHORT = 72, LONG = 4000;

// A text, with a line for each clause if it is SQL in one line.
export function byClauses(text) {
  if (text.length > LONG || /[\n\r]/.test(text) || PROSE.test(text) || !SQL.test(text)) return text;
  const broken = text.replace(CLAUSE, (_, kept, clause) => kept ?? `\n${clause}`);
  return text.length > SHORT || broken.split("\n").length > 2 ? broken : text;
}
