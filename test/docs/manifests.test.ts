import assert from 'node:assert/strict';
import { parseAllDocuments } from 'yaml';
import { schemaFaults } from '../deploy/schema.ts';
import { fencedBlocks, PAGES, readPage } from './page.ts';

describe('manifests in the pages', () => {
  for (const page of PAGES) {
    const blocks = fencedBlocks(readPage(page), 'yaml');
    const documents = blocks.flatMap((block) => [...parseAllDocuments(block)]);
    const objects = documents.map((document) => document.toJS());
    const ofKubernetes = objects.filter(({ kind }) => kind !== 'KubeProxyConfiguration');
    if (ofKubernetes.length === 0) continue;

    it(`match the schemas of Kubernetes: ${page}`, async () => {
      for (const object of ofKubernetes) assert.deepEqual(await schemaFaults(object), []);
    });
  }
});
