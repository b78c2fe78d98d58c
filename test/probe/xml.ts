/** A strict parser of the XML that JUnit reports use: elements, attributes and text. */

export interface XmlElement {
  readonly name: string;
  readonly attributes: Readonly<Record<string, string>>;
  readonly children: XmlElement[];
  text: string;
}

const ENTITIES: Readonly<Record<string, string>> = {
  amp: '&',
  lt: '<',
  gt: '>',
  quot: '"',
  apos: "'",
};
const TAG = /^<(\/?)([A-Za-z][\w.-]*)((?:\s+[A-Za-z][\w.-]*="[^"<]*")*)\s*(\/?)>/;

/** @throws Error if the document is not well-formed. */
export function parseXml(document: string): XmlElement {
  let rest = document.replace(/^<\?xml version="1\.0" encoding="UTF-8"\?>\n/, '').trimEnd();
  const top: XmlElement = { name: '', attributes: {}, children: [], text: '' };
  const open = [top];
  while (rest !== '') {
    const current = open.at(-1) ?? top;
    const text = /^[^<]+/.exec(rest)?.[0];
    if (text !== undefined) {
      current.text += decode(text);
      rest = rest.slice(text.length);
      continue;
    }
    const [tag, closing, name = '', attributes = '', empty] = TAG.exec(rest) ?? [];
    if (tag === undefined) throw new Error(`no tag at: ${rest.slice(0, 60)}`);
    rest = rest.slice(tag.length);
    if (closing === '/') {
      if (open.pop()?.name !== name) throw new Error(`unexpected </${name}>`);
      continue;
    }
    const element = { name, attributes: attributesOf(attributes), children: [], text: '' };
    current.children.push(element);
    if (empty !== '/') open.push(element);
  }
  const [root, ...more] = top.children;
  if (root === undefined || more.length > 0 || open.length !== 1) throw new Error('not one root');
  return root;
}

function attributesOf(text: string): Record<string, string> {
  const pairs = [...text.matchAll(/([\w.-]+)="([^"]*)"/g)];
  return Object.fromEntries(pairs.map(([, name = '', value = '']) => [name, decode(value)]));
}

function decode(text: string): string {
  // XML 1.0, production 2: characters that a document may contain.
  if (/[^\t\n\r\x20-\ud7ff\ue000-\ufffd]/.test(text)) throw new Error('invalid character');
  return text.replace(/&(\w*)(;?)/g, (_, name: string, end: string) => {
    const character = ENTITIES[name];
    if (character === undefined || end === '') throw new Error(`invalid entity &${name}`);
    return character;
  });
}
