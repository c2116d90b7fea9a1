// Who may use a persona or a document, while somebody chooses it.

import type { Access, Told } from "./api";
import { addresses } from "./says";

export class Readership {
  visibility = $state<Access["visibility"]>("owner");
  groupIds = $state<string[]>([]);
  /** Addresses, as they are being written. */
  people = $state("");

  /** As it is now. */
  take({ summary, readers, group_ids }: Told): void {
    this.visibility = summary.visibility;
    this.groupIds = [...group_ids];
    this.people = readers.join("\n");
  }

  get access(): Access {
    const isListed = this.visibility === "listed";
    return {
      visibility: this.visibility,
      readers: isListed ? addresses(this.people) : [],
      group_ids: isListed ? this.groupIds : [],
    };
  }
}
