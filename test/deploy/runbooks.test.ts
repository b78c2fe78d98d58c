import assert from 'node:assert/strict';
import { parse } from 'yaml';
import { anchors, PAGES, readPage } from '../docs/page.ts';
import { readText } from './manifests.ts';

interface Group {
  readonly rules: readonly {
    readonly alert: string;
    readonly annotations: { runbook_url?: string };
  }[];
}

describe('monitoring: runbooks', () => {
  const { groups }: { groups: readonly Group[] } = parse(readText('deploy/monitoring/alerts.yaml'));
  for (const { alert, annotations } of groups.flatMap(({ rules }) => rules)) {
    it(`${alert} links to its part of a page`, () => {
      const [, page = '', anchor = ''] =
        /^https:\/\/portwide\.invalid\/(docs\/.*)#(.*)$/.exec(annotations.runbook_url ?? '') ?? [];
      assert.ok(PAGES.includes(page), annotations.runbook_url);
      assert.ok(anchors(readPage(page)).includes(anchor), annotations.runbook_url);
      assert.equal(anchor, alert.toLowerCase());
    });
  }
});
