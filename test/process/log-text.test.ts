import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { execa } from 'execa';
import { createLog } from '../../process/log.ts';
import { textLine } from '../../process/log-text.ts';
import { PORTWIDE } from '../portwide.ts';

const HEAD = 'apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n';

const line = (fields: object) =>
  textLine(
    JSON.stringify({ level: 40, time: Date.UTC(2026, 0, 1), msg: 'sync failed', ...fields }),
  );

describe('log-text: the log as text', () => {
  it('has time, level, message and fields in a stable format', () => {
    assert.equal(
      line({ family: 'IPv4', err: { type: 'NetlinkError', message: 'no such chain' } }),
      '2026-01-01T00:00:00.000Z WARN sync failed family=IPv4 err="no such chain"\n',
    );
    assert.equal(
      line({ level: 30, addresses: ['10.0.0.1', 'fd00::1'], count: 3, deep: { a: [1] } }),
      '2026-01-01T00:00:00.000Z INFO sync failed addresses=10.0.0.1,fd00::1 count=3 deep="{\\"a\\":[1]}"\n',
    );
  });

  it('names all levels', () => {
    const levels = [20, 30, 40, 50].map((level) => line({ level, msg: '' }).split(' ')[1]);
    assert.deepEqual(levels, ['DEBUG', 'INFO', 'WARN', 'ERROR']);
  });

  it('quotes ambiguous values', () => {
    for (const [value, expected] of [
      ['', '""'],
      ['a b', '"a b"'],
      ['a=b', '"a=b"'],
      ['"', '"\\""'],
      ['back\\slash', '"back\\\\slash"'],
      ['default/web', 'default/web'],
    ]) {
      assert.ok(line({ value }).endsWith(` value=${expected}\n`), line({ value }));
    }
  });

  it('writes one line of printable ASCII for any name and message', () => {
    const evil = 'x\n2026-01-01T00:00:00.000Z ERROR forged\r\u001b[2J\u0085\u2028\u202e\u007f';
    const text = line({
      msg: evil,
      service: evil,
      err: { type: 'Error', message: evil },
      [evil]: 1,
    });
    assert.match(text, /^[\x20-\x7e]+\n$/);
    assert.equal(text.match(/ERROR forged/g)?.length, 4);
    assert.ok(text.includes('service="x\\n2026'), text);
  });

  it('includes the stack of an error if it has one', () => {
    const text = line({
      err: { type: 'TypeError', message: 'm', stack: 'TypeError: m\n    at x' },
    });
    assert.ok(text.endsWith('err=m stack="TypeError: m\\n    at x"\n'), text);
  });
});

describe('log-text: the log format', () => {
  it('follows flag and configuration file', async () => {
    const directory = mkdtempSync(join(tmpdir(), 'portwide-log-'));
    try {
      const config = join(directory, 'config.conf');
      writeFileSync(config, `${HEAD}logging: {format: text}\n`);
      const write = [`--config=${config}`, `--write-config-to=${join(directory, 'written')}`];
      const outputOf = async (...flags: readonly string[]) =>
        (await execa(PORTWIDE, ['run', ...write, ...flags])).stdout;
      assert.match(await outputOf(), /^\S+Z INFO wrote the configuration file file=\S+$/);
      assert.match(
        await outputOf('--logging-format=json'),
        /^\{.*"msg":"wrote the configuration file"\}$/,
      );
    } finally {
      rmSync(directory, { recursive: true });
    }
  });

  const written = (format: 'text' | 'json' | undefined, isTerminal: boolean) => {
    let output = '';
    const stream = new Writable({
      write(chunk, _encoding, done) {
        output += chunk;
        done();
      },
    });
    createLog({ v: 0, loggingFormat: format }, { stream, isTerminal }).warn({ a: 1 }, 'message');
    return output;
  };
  const TEXT = /^\d{4}-\d\d-\d\dT[\d:.]+Z WARN message a=1\n$/;
  const JSON_LINE = /^\{"level":40,"time":\d+,"a":1,"msg":"message"\}\n$/;

  it('defaults to text on a terminal and to JSON elsewhere', () => {
    assert.match(written(undefined, true), TEXT);
    assert.match(written(undefined, false), JSON_LINE);
    assert.match(written('text', false), TEXT);
    assert.match(written('json', true), JSON_LINE);
  });
});
