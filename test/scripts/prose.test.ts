import assert from 'node:assert/strict';
import { lintProse } from '../../scripts/prose/lint.ts';

const places = async (text: string, path: string) =>
  (await lintProse(text, path)).map(({ line, column, rule }) => `${line}:${column} ${rule}`);

/** Built from parts, so that this file itself passes the rules. */
const AVOIDED = ['who', 'ever'].join('');
const long = (words: number) => `${Array.from({ length: words }, () => 'word').join(' ')}.`;

describe('lint-prose: Markdown', () => {
  it('finds an avoided word in a paragraph, a heading and a table cell', async () => {
    const page = `# For ${AVOIDED} reads\n\nText for ${AVOIDED}.\n\n| a |\n|---|\n| ${AVOIDED} |\n`;
    assert.deepEqual(await places(page, 'a.md'), [
      '1:7 avoided-words',
      '3:10 avoided-words',
      '7:3 avoided-words',
    ]);
  });

  it('ignores code', async () => {
    const page = `Text \`${AVOIDED}\` here.\n\n\`\`\`sh\n${AVOIDED}\n\`\`\`\n`;
    assert.deepEqual(await places(page, 'a.md'), []);
  });

  it('counts the words of each sentence alone', async () => {
    assert.deepEqual(await places(`Short. ${long(30)}\n`, 'a.md'), []);
    assert.deepEqual(await places(`Short. ${long(31)}\n`, 'a.md'), ['1:8 long-sentence']);
  });

  it('accepts two passives in a sentence and rejects three', async () => {
    const two = 'It is read and was written.';
    assert.deepEqual(await places(two, 'a.md'), []);
    assert.deepEqual(await places(`${two.slice(0, -1)} and is kept.`, 'a.md'), [
      '1:4 passive-chain',
    ]);
  });

  it('accepts two relative clauses in a sentence and rejects three', async () => {
    const two = 'A packet that leaves a pod that runs here.';
    assert.deepEqual(await places(two, 'a.md'), []);
    assert.deepEqual(await places(two.replace('here', 'on a node that is up'), 'a.md'), [
      '1:10 clause-chain',
    ]);
  });
});

describe('lint-prose: TypeScript', () => {
  it('reads comments across lines, at their place', async () => {
    const source = `/**\n * One sentence for\n * ${AVOIDED}.\n */\n// And ${AVOIDED}\nconst a = 1; // ${AVOIDED}\n`;
    assert.deepEqual(await places(source, 'a.ts'), [
      '3:4 avoided-words',
      '5:8 avoided-words',
      '6:17 avoided-words',
    ]);
  });

  it('joins lines of a comment into one sentence and separates tags', async () => {
    const half = long(16).slice(0, -1);
    assert.deepEqual(await places(`// ${half}\n// ${half}\n`, 'a.ts'), ['1:4 long-sentence']);
    assert.deepEqual(await places(`/**\n * ${half}\n * @param a ${half}\n */\n`, 'a.ts'), []);
  });

  it('reads messages, also when they are concatenated or templates', async () => {
    const message = `'the rules of ' + \`all \${count} tables for ${AVOIDED} reads\``;
    assert.deepEqual(await places(`log(${message});`, 'a.ts'), ['1:48 avoided-words']);
  });

  it('ignores identifiers, short strings and code in comments', async () => {
    const source = `/** See \`${AVOIDED}\`. */\nconst ${AVOIDED} = '${AVOIDED}';\n`;
    assert.deepEqual(await places(source, 'a.ts'), []);
  });

  it('finds invented terms in names', async () => {
    const name = ['is', 'Fa', 'te'].join('');
    assert.deepEqual(await places(`const ${name} = 1;\n`, 'a.ts'), ['1:7 invented-names']);
  });

  it('reads titles of tests but no other strings of tests', async () => {
    const source = `it('serves ${AVOIDED}', () => f('a text for ${AVOIDED} that is long'));\n`;
    assert.deepEqual(await places(source, 'test/a.test.ts'), ['1:12 avoided-words']);
  });
});
