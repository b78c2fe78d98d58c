import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { execa } from 'execa';
import { codeLines, executedLines, type ScriptCoverage } from '../../scripts/covered/lines.ts';

const SCRIPT = new URL('../../scripts/coverage.ts', import.meta.url).pathname;

const SOURCE = `import { argv } from 'node:process';

/** A comment. */
interface Shape {
  readonly side: number;
}

function area(shape: Shape): number {
  if (shape.side < 0) {
    throw new Error('negative');
  }
  return shape.side ** 2;
}
function unused(): void {
  console.log('unused');
}
const sides: Shape[] = [{ side: 2 }];
sides.map((shape) => (argv.length > 100 ? unused() : area(shape)));
sides.map((shape) =>
  area(shape),
);
`;

describe('coverage: lines of a TypeScript file', () => {
  let directory: string;
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-coverage-'));
  });
  afterEach(() => rmSync(directory, { recursive: true, force: true }));

  it('counts lines with code, without types, comments, imports and brackets', () => {
    assert.deepEqual([...codeLines(SOURCE)], [8, 9, 10, 12, 14, 15, 17, 18, 19, 20]);
  });

  it('finds the lines that Node.js executed completely', async () => {
    const file = join(directory, 'shapes.ts');
    writeFileSync(file, SOURCE);
    const reports = join(directory, 'reports');
    await execa(process.execPath, [file], { env: { NODE_V8_COVERAGE: reports } });
    const [report = ''] = readdirSync(reports);
    const { result } = JSON.parse(readFileSync(join(reports, report), 'utf8')) as {
      result: ScriptCoverage[];
    };
    const script = result.find(({ url }) => url === pathToFileURL(file).href);
    assert.ok(script !== undefined);
    // Not: throw, the function that nothing calls, and the line that would call it.
    assert.deepEqual([...executedLines(SOURCE, script)], [8, 9, 12, 17, 19, 20]);
  });

  it('fails below a floor, and names lines that were not executed', async () => {
    const { exitCode, stdout, stderr } = await execa(process.execPath, [SCRIPT, directory], {
      reject: false,
    });
    assert.equal(exitCode, 1);
    assert.match(stdout, /^api +\d+ +0 +0\.0 +\d+\.\d$/m);
    assert.match(
      stderr,
      /^api is below its floor; not executed: api\/\S+\.ts:\d+ .* and \d+ more$/m,
    );
  });
});
