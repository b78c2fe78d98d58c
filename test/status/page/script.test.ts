import assert from 'node:assert/strict';
import { runInNewContext } from 'node:vm';
import { PAGE_SCRIPT, pageFileNames, readPageFile } from '../../../status/page-files.ts';
import { joinModules } from '../../../status/page-script.ts';

/** Joins modules, runs the script, and returns what it assigned to `result`. */
async function run(modules: Readonly<Record<string, string>>): Promise<unknown> {
  const context = { result: undefined };
  runInNewContext(await join(modules), context);
  return context.result;
}

const join = (modules: Readonly<Record<string, string>>) =>
  joinModules('main.js', async (name) => modules[name] ?? assert.fail(name));

describe('status page: joined script', () => {
  it('keeps names of modules apart, and runs each module once, after its imports', async () => {
    const result = await run({
      'main.js':
        "import { PATH as b, runs } from './b-1.js';\nimport { PATH } from './a.js';\nresult = [PATH, b, runs()];",
      'b-1.js':
        "import { note } from './a.js';\nexport const PATH = 'b';\nnote();\nexport function runs() {\n  return note();\n}",
      'a.js': "export const PATH = 'a';\nlet count = 0;\nexport const note = () => (count += 1);",
    });
    assert.equal(JSON.stringify(result), '["a","b",2]');
  });

  it('reads exports of minified packages', async () => {
    const result = await run({
      'main.js':
        "import make from './htm.js';\nimport { h, Component } from './preact.js';\nresult = [make(), h, Component];",
      'htm.js': 'var n=1;export default function(){return n}',
      'preact.js':
        'var k=2,x=3;export{x as Component,k as h,k as createElement};\n//# sourceMappingURL=x.map',
    });
    assert.equal(JSON.stringify(result), '[1,2,3]');
  });

  for (const text of [
    "export * from './a.js';",
    "import * as all from './a.js';",
    "import './a.js';",
    'export let a = 1;',
    "import {\n  a,\n} from './a.js'; import x from 'y';",
  ]) {
    it(`refuses ${JSON.stringify(text)}`, async () => {
      await assert.rejects(join({ 'main.js': text, 'a.js': 'export const a = 1;' }), /cannot join/);
    });
  }

  it('refuses a cycle', async () => {
    const modules = {
      'main.js': "import { a } from './a.js';",
      'a.js': "import { b } from './main.js';",
    };
    await assert.rejects(join(modules), /main.js imports itself/);
  });

  it('has every module of the page, and nothing that loads further modules', async () => {
    const read = async (name: string) => String(await readPageFile(name));
    const script = await joinModules(PAGE_SCRIPT.entry, read);
    const modules = (await pageFileNames()).filter(
      (name) => /\.js$/.test(name) && name !== 'uplot.js',
    );
    for (const name of modules)
      assert.ok(script.includes(`\n// ${name}\n`) || script.startsWith(`// ${name}\n`), name);
    assert.equal(/^\s*(import|export)\b/m.exec(script), null);
  });
});
