import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { gunzipSync } from 'node:zlib';
import { File } from '../../../status/http/file.ts';
import { NotFound } from '../../../status/http/handler.ts';
import { PAGE_PACKAGES, pageFileNames, readPageFile } from '../../../status/page-files.ts';
import { pageResources } from '../../../status/page-resources.ts';
import { BUNDLE } from '../../portwide.ts';
import { requestOf } from '../request.ts';

describe('status page: answers with files', () => {
  const content = Buffer.from('let text;'.repeat(100));
  const file = new File({ type: 'text/javascript', content });

  it('is compressed for clients that accept it', async () => {
    const { status, headers, content: body } = await file.answer({ 'accept-encoding': 'br, gzip' });
    assert.equal(status, 200);
    assert.equal(headers['content-encoding'], 'gzip');
    assert.equal(headers['content-length'], body.length);
    assert.ok(body.length < content.length);
    assert.deepEqual(gunzipSync(body), content);
    const plain = await file.answer({});
    assert.equal(plain.headers['content-encoding'], undefined);
    assert.deepEqual(plain.content, content);
    assert.notEqual(plain.headers.etag, headers.etag);
  });

  it('is empty if the browser has it', async () => {
    for (const encoding of ['gzip', 'identity']) {
      const { headers } = await file.answer({ 'accept-encoding': encoding });
      const again = await file.answer({
        'accept-encoding': encoding,
        'if-none-match': String(headers.etag),
      });
      assert.equal(again.status, 304);
      assert.equal(again.content.length, 0);
    }
    assert.equal((await file.answer({ 'if-none-match': '"other"' })).status, 200);
  });

  it('asks browsers to check each time whether the file changed', async () => {
    assert.equal((await file.answer({})).headers['cache-control'], 'no-cache');
  });
});

describe('status page: paths of files', () => {
  const get = async (name: string) =>
    await pageResources()['/page/{file}']?.answer(
      new URLSearchParams(),
      requestOf({ path: [name] }),
    );

  it('serves files of the page', async () => {
    assert.ok((await get('main.js')) instanceof File);
  });

  for (const name of [
    '../page-files.ts',
    'preact.d.ts',
    'tsconfig.json',
    '',
    '..',
    'x.js',
    '/etc/passwd',
  ]) {
    it(`does not serve ${JSON.stringify(name)}`, async () => {
      await assert.rejects(get(name), NotFound);
    });
  }
});

describe('status page: bundle', () => {
  it('has all files of the page, and their licences', async () => {
    for (const name of await pageFileNames()) {
      const copy = readFileSync(`${BUNDLE}/bundle/page/${name}`);
      assert.deepEqual(copy, await readPageFile(name), name);
    }
    const licences = readFileSync(`${BUNDLE}/bundle/LICENSES`, 'utf8');
    for (const path of Object.values(PAGE_PACKAGES)) {
      const name = path.split('/').slice(0, 2).join('/');
      assert.ok(licences.includes(`=== ${name}\n`), name);
    }
    assert.ok(existsSync(`${BUNDLE}/bundle/openapi.json`));
  });
});
