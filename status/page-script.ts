/**
 * Joins the modules of the status page into one script. A browser then needs one request for all of them, and
 * nothing has to be built: the agent joins the files when the page is first opened. Pure, except for `read`.
 */

/** An import of names, or of the default. */
const IMPORT = /^import (?:(\w+)|\{([^}]*)\}) from '\.\/([\w-]+\.js)';$/gm;
/** `export function a`, `export const a` and so on. */
const DECLARATION = /^export ((?:async )?function|class|const) (\w+)/gm;
/** `export{a as b,c}` of minified packages. */
const LIST = /\bexport\s*\{([^}]*)\};?/g;
const DEFAULT = /\bexport default /;
/** Names of files would be wrong in the joined script. */
const SOURCE_MAP = /^\/\/# sourceMappingURL=.*$/gm;

/**
 * Each module becomes a function that returns its exports, after the modules that it imports.
 * @param read returns the text of a module.
 * @throws Error for an import or export in a form that this function does not know.
 */
export async function joinModules(
  entry: string,
  read: (name: string) => Promise<string>,
): Promise<string> {
  const texts = new Map<string, string>();
  const visiting = new Set<string>();
  const visit = async (name: string) => {
    if (texts.has(name)) return;
    if (visiting.has(name)) throw new Error(`${name} imports itself`);
    visiting.add(name);
    const text = await read(name);
    for (const [, , , imported = ''] of text.matchAll(IMPORT)) await visit(imported);
    texts.set(name, moduleText(name, text));
  };
  await visit(entry);
  return [...texts.values()].join('');
}

function moduleText(name: string, text: string): string {
  const exported: string[] = [];
  const body = text
    .replaceAll(SOURCE_MAP, '')
    .replaceAll(IMPORT, (_, single: string | undefined, list = '', from: string) =>
      single === undefined
        ? `const {${namesOf(list).map(([outer, inner]) => property(outer, inner))}} = ${variable(from)};`
        : `const ${single} = ${variable(from)}.default;`,
    )
    .replaceAll(DECLARATION, (_, kind: string, declared: string) => {
      exported.push(declared);
      return `${kind} ${declared}`;
    })
    .replaceAll(LIST, (_, list: string) => {
      for (const [inner, outer] of namesOf(list)) exported.push(property(outer, inner));
      return '';
    })
    .replace(DEFAULT, () => {
      exported.push('default: exportedDefault');
      return 'const exportedDefault = ';
    });
  const rest = /^\s*(?:import\b[^.(]|export\b).*/m.exec(body);
  if (rest !== null)
    throw new Error(`${name}: cannot join ${JSON.stringify(rest[0].slice(0, 80))}`);
  const result = `return { ${exported.join(', ')} };`;
  return `// ${name}\nconst ${variable(name)} = (() => {\n${body.trim()}\n${result}\n})();\n`;
}

/** `a, b as c` */
function namesOf(list: string): (readonly [first: string, second: string])[] {
  return list
    .split(',')
    .map((each) => each.trim())
    .filter((each) => each !== '')
    .map((each) => {
      const [first = '', second = first] = each.split(/\s+as\s+/);
      return [first, second];
    });
}

function property(key: string, value: string): string {
  return key === value ? key : `${key}: ${value}`;
}

/** `module_` keeps names of modules and names in modules apart. */
function variable(name: string): string {
  return `module_${name.replace(/\.js$/, '').replaceAll('-', '_')}`;
}
