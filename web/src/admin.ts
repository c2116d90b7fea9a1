import { mount } from "svelte";

import App from "./admin/App.svelte";
import { applyTheme } from "./lib/theme";
import { speak } from "./strings/admin";
import { speak as speakOfFaults } from "./strings/faults";
import { language } from "./strings/language";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/admin.css";

applyTheme();

async function begin(target: HTMLElement): Promise<void> {
  document.documentElement.lang = language;
  await Promise.all([speak(), speakOfFaults()]);
  mount(App, { target });
}

const target = document.getElementById("page");
if (target) void begin(target);
